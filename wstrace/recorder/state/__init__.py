"""What the recorder knows of its process while it records."""
