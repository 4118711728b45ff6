"""The reserve config: its schema, how it is planned, how it is checked."""
