"""`specd-tui`: the console. Options, then the application; nothing else."""

import argparse
import importlib.metadata
import os
import sys

from tui.place import NoToken, default_socket, read_token

__all__ = ["main"]

_THEMES = ("dark", "light", "high-contrast")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specd-tui", description="The console of specd: services, trials, live progress, cancel and rollback."
    )
    parser.add_argument("--socket", metavar="PATH", help="the daemon's unix socket, or http://HOST:PORT")
    parser.add_argument("--token-file", metavar="FILE", help="a file with the token for http://HOST:PORT")
    parser.add_argument("--read-only", action="store_true", help="only look: no cancel, rollback or extend")
    parser.add_argument("--theme", choices=_THEMES, help="colours; T changes them (default: dark)")
    parser.add_argument("--ascii", action="store_true", help="draw with plain ASCII signs")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the console; returns its exit status."""
    args = _parser().parse_args(argv)
    if args.version:
        sys.stdout.write(f"specd-tui {_version()}\n")
        return 0
    address = args.socket or default_socket(os.environ, os.geteuid() == 0)
    token_file = args.token_file or os.environ.get("SPECD_TOKEN_FILE", "")
    try:
        token = read_token(token_file if address.startswith(("http://", "https://")) else "")
    except NoToken as error:
        sys.stderr.write(f"specd-tui: {error}\n")
        return 2
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write("specd-tui: this is no terminal; `specd trials` and `specd show` print the same as text\n")
        return 2
    return _run(address, token, args)


def _version() -> str:
    try:
        return importlib.metadata.version("specd")
    except importlib.metadata.PackageNotFoundError:
        return "of a checkout that is not installed"


def _run(address: str, token: str, args: argparse.Namespace) -> int:
    # Here and not above: help and version need not wait for the toolkit.
    from tui.app import ConsoleApp
    from tui.client import ApiClient
    from tui.glyphs import ASCII, glyphs_for
    from tui.leave import Exit

    for name in ("COLUMNS", "LINES"):
        # Exported ones are of another moment; the terminal itself knows its size, also after a change.
        os.environ.pop(name, None)
    glyphs = ASCII if args.ascii else glyphs_for()
    app = ConsoleApp(
        ApiClient(address, token), glyphs, theme=args.theme or "", read_only=args.read_only, leaving=Exit()
    )
    app.run()
    return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main())
