"""The CI gate: which findings fail, what a clean run has shown, and the exit code."""
