"""The reserve file: its schema, reading and writing it, and evaluating it in a worker."""
