"""`python -m specd` and the `specd` command."""

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line; returns its exit status."""
    from specd.cli.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
