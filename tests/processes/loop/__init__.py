"""Commands that people type one after the other, with a server that answers in milliseconds."""
