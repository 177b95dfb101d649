"""The words of the command line. Imports nothing that a `--help` does not need."""

import argparse
from dataclasses import dataclass
from typing import Any

__all__ = ["parse"]


@dataclass(frozen=True, slots=True)
class _Word:
    """One positional or option of a command: argparse's own arguments."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def _word(*names: str, **settings: Any) -> _Word:
    return _Word(names, settings)


@dataclass(frozen=True, slots=True)
class _Command:
    """A command: where its function is (module:function), what it does, an example, and its words."""

    function: str
    does: str
    example: str
    words: tuple[_Word, ...] = ()


_FILE = _word("file", metavar="FILE", help="a trial file (TOML); - reads standard input")
_ID = _word("id", metavar="ID", help="an id, its unique beginning, or the name of the latest trial so called")
_WAIT = _word("--wait", action="store_true", help="wait for the end; status 1 if a trial does not end as asked")

_COMMANDS = {
    "start": _Command(
        "specd.cli.serve:start", "run the daemon, in the foreground", "specd start --config /etc/specd/config.toml"
    ),
    "submit": _Command(
        "specd.cli.submit:submit", "check and queue the trials of a file; prints their ids",
        "specd watch $(specd submit ngram.toml)", (_FILE, _WAIT),
    ),
    "plan": _Command(
        "specd.cli.plan:plan", "dry run: what would change, what the checks say; reads only", "specd plan ngram.toml",
        (_FILE, _word("--rehearsal", action="store_true", help="plan it with the rehearsal engine")),
    ),
    "trials": _Command(
        "specd.cli.trials:trials", "list trials, newest first", "specd trials --limit 20",
        (_word("--limit", type=int, default=50, metavar="N", help="at most so many (50)"),),
    ),
    "show": _Command(
        "specd.cli.show:show", "tell one trial's whole story", "specd show ngram-5-4",
        (_ID, _word("--log", action="store_true", help="print the engine's log instead")),
    ),
    "watch": _Command(
        "specd.cli.watch:watch", "follow a trial to its end, or everything without one", "specd watch ngram-5-4",
        (
            _word("id", metavar="ID", nargs="?", default="", help=_ID.settings["help"]),
            _word("--patience", type=float, default=600.0, metavar="SECONDS",
                  help="how long to try again after the daemon has gone away (600)"),
        ),
    ),
    "cancel": _Command(
        "specd.cli.steer:cancel", "end a trial and bring the baseline back", 'specd cancel ngram-5-4 --why "traffic"',
        (_ID, _word("--why", default="", metavar="TEXT", help="the reason, kept with the trial")),
    ),
    "rollback": _Command(
        "specd.cli.steer:rollback", "bring a service's baseline back, also after keep or a failed rollback",
        "specd rollback kimi", (_word("service", metavar="SERVICE", help="a service of the config"),),
    ),
    "takeover": _Command(
        "specd.cli.steer:takeover", "take a service over from another specd daemon that has its claim",
        "specd takeover kimi", (
            _word("service", metavar="SERVICE", help="a service of the config"),
            _word("--yes", action="store_true", help="do not ask before"),
        ),
    ),
    "extend": _Command(
        "specd.cli.steer:extend", "give a trial's running state more time", "specd extend ngram-5-4 30",
        (_ID, _word("minutes", type=float, metavar="MINUTES", help="how much more; fractions are fine")),
    ),
    "check": _Command(
        "specd.cli.check:check", "preflight of every host and service in the config", "specd check",
        (_word("--here", action="store_true", help="check from this process even if a daemon answers"),),
    ),
    "import": _Command(
        "specd.cli.importing:import_unit", "read a running unit and print the config for it",
        "specd import gpu1 vllm-kimi.service >> config.toml",
        (
            _word("host", metavar="HOST", help="a host of the config, what you type after ssh, or local"),
            _word("unit", metavar="UNIT", nargs="?", default="", help="the unit; without it, list the candidates"),
            _word("--scope", choices=("system", "user"), default="system", help="whose systemd (system)"),
            _word("--become", choices=("none", "sudo"), help="how to get root there (the config's, or none)"),
            _word("--embedded", metavar="DIRECTORY", help="the units are specd's own supervisor's, in DIRECTORY there"),
            _word("--name", default="", help="the service's name in the config (from the unit's)"),
        ),
    ),
    "rehearse": _Command(
        "specd.cli.submit:rehearse", "the same trials with the rehearsal engine: minutes, no GPU",
        "specd rehearse ngram.toml --wait", (_FILE, _WAIT),
    ),
    "report": _Command(
        "specd.cli.reporting:report", "results of trials, of all that have ended without an ID",
        "specd report ngram-5-4 -o ngram.html",
        (
            _word("id", metavar="ID", nargs="*", help=_ID.settings["help"]),
            _word("--format", choices=("html", "md", "csv", "json", "parquet"), help="else by -o's ending, or md"),
            _word("-o", "--output", default="", metavar="FILE", help="write there instead of standard output"),
            _word("--requests", action="store_true", help="csv, json: a row for each request (parquet: always)"),
            _word("--policy", default="", metavar="KEY=VALUE,...", help="judge anew, e.g. metric=ttft,margin=0.05"),
        ),
    ),
    "demo": _Command(
        "specd.cli.serve:demo", "a whole trial on this machine: no root, no GPU, no systemd, no network", "specd demo"
    ),
}  # fmt: skip

_STATUSES = """\
exit status: 0 done; 1 the trial did not end as asked; 2 wrong usage or config; 3 daemon not reachable; 4 refused
"""


def parse(words: list[str]) -> argparse.Namespace:
    """Return the parsed words, with the command's function as `function`; exits on --help, --version and mistakes."""
    parser = argparse.ArgumentParser(
        prog="specd",
        description="Tries launch-time configurations of a production LLM service; always brings the baseline back.",
        epilog="example:\n  specd demo\n  specd import gpu1 vllm.service\n\n" + _STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    _add_common(parser, is_root=True)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for name, command in _COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.does,
            description=command.does[0].upper() + command.does[1:] + ".",
            epilog=f"example:\n  {command.example}\n\n{_STATUSES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for word in command.words:
            sub.add_argument(*word.names, **word.settings)
        _add_common(sub, is_root=False)
        sub.set_defaults(function=command.function)
    return parser.parse_args(words)


def _add_common(parser: argparse.ArgumentParser, *, is_root: bool) -> None:
    """Add the options that may stand before or after the command; only the first place has defaults."""

    def default(value: Any) -> Any:
        return value if is_root else argparse.SUPPRESS

    group = parser.add_argument_group("for every command")
    group.add_argument("--config", default=default(""), metavar="F", help="the config file ($SPECD_CONFIG)")
    group.add_argument(
        "--socket", default=default(""), metavar="PATH", help="the daemon's socket, or http://host:port ($SPECD_SOCKET)"
    )
    group.add_argument(
        "--token-file", default=default(""), metavar="F", help="the token for http:// ($SPECD_TOKEN_FILE)"
    )
    group.add_argument("--json", action="store_true", default=default(False), help="print JSON")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from specd import __version__

        parser.exit(message=f"specd {__version__}\n")
