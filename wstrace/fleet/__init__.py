"""Many runs and logs: found, each read into one small row, and what the rows say together."""
