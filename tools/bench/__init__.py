"""What wstrace costs, measured: `scripts/bench NAME`."""
