"""Random mishaps in random order, for as long as one likes: `python -m tests.chaos --help`."""
