"""The command line, a file for each command. What a command needs is imported when it runs: help takes no time."""
