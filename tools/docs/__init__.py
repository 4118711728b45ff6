"""The generated pages and reports of the repository: `scripts/make-docs [NAME ...]`."""
