"""`python -m specd.rehearsal`: serve, check or --version."""

from __future__ import annotations

import sys

from .program import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
