"""A run as tables: what the public Python API, CSV and Parquet share."""
