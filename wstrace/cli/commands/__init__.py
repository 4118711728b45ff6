"""One module a command. Each has a function `command`; its docstring is the help text."""
