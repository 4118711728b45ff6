"""The command line: one module a command in `commands/`, listed in `app.COMMANDS`."""
