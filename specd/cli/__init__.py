"""The command line: a client of the daemon's API, plus the commands that start one."""
