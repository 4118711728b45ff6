"""The trace contract: record types, the writer-side encoding, the reader, the merge."""
