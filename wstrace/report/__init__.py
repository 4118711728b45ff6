"""A run or a verdict in every form that it is shown in, a module each."""
