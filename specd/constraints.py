"""What a configured value may be: small rules that return the value as it will be used, or raise ValueError with words.

A rule stands in a field's annotation (`Annotated[str, unit_name]`); specd/config/ applies it. No rule echoes a value
that could be a secret.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from specd.window import is_window

__all__ = [
    "Mark",
    "Rule",
    "env_name",
    "figure_limits",
    "host_path",
    "http_url",
    "listen_address",
    "no_option",
    "one_of",
    "prompt_sets",
    "record_name",
    "unit_name",
    "window",
    "within",
    "without_keys",
]

Rule = Callable[[Any], Any]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OTHER_UNITS = (
    "automount", "device", "mount", "path", "scope", "slice", "socket", "swap", "target", "timer",
)  # fmt: skip


class Mark(Enum):
    """What the reader must know of a field beyond its type."""

    GIVEN = "given"  # set by the loader, never a key of the file
    LOCAL_PATH = "local path"  # a path on this machine: ~ is expanded, relative ones start at the config file
    FREE_TEXT = "free text"  # may hold line breaks


def within(low: float, high: float, *, above: bool = False, below: bool = False) -> Rule:
    """Return a rule for low <= value <= high; `above` and `below` take the ends away."""

    def rule(value: Any) -> Any:
        if value < low or value > high or (above and value == low) or (below and value == high):
            least = f"more than {low:.12g}" if above else f"at least {low:.12g}"
            most = f"less than {high:.12g}" if below else f"at most {high:.12g}"
            raise ValueError(f"must be {least} and {most}, not {value:.12g}")
        return value

    return rule


def one_of(*words: str) -> Rule:
    """Return a rule for one word out of a few."""

    def rule(value: Any) -> Any:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(word for word in words if word)}; not {value[:40]!r}")
        return value

    return rule


def prompt_sets(value: Any) -> Any:
    """Accept a prompt set's name or path, or a table of several with weights."""
    names = value if isinstance(value, dict) else {value: 1}
    if not names or "" in names:
        raise ValueError("must name a prompt set")
    for name, weight in names.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or weight <= 0:
            raise ValueError(f"the weight of {name} must be a number above 0")
    return {name: float(weight) for name, weight in value.items()} if isinstance(value, dict) else value


def record_name(value: str) -> str:
    """Accept the name of a host, service, benchmark plan or trial."""
    if not value:
        raise ValueError("must not be empty")
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{value[:70]!r} is not a name: 1 to 63 lower-case letters, digits, dots, dashes and underscores, "
            "a letter or digit first"
        )
    return value


def unit_name(value: str) -> str:
    """Accept a service unit's name; a name without a suffix gets `.service`."""
    if not value:
        raise ValueError("must not be empty")
    if "/" in value:
        raise ValueError("is a unit's name, not a path")
    if value.startswith("-"):
        raise ValueError("must not begin with a dash")
    if not _UNIT.fullmatch(value):
        raise ValueError("has characters that no unit's name has")
    stem, _, suffix = value.rpartition(".")
    if suffix in _OTHER_UNITS:
        raise ValueError(f"is a {suffix} unit; only services can be tried")
    if suffix != "service":
        stem, value = value, f"{value}.service"
    if not stem:
        raise ValueError("has nothing before .service")
    if stem.endswith("@"):
        raise ValueError(f"is a template; name an instance of it, for example {stem}1.service")
    if len(value) > 255:
        raise ValueError("is longer than 255 characters")
    return value


def http_url(value: str) -> str:
    """Accept the base URL of a server, without path or login."""
    if not value:
        return value
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError("is not a URL such as http://127.0.0.1:8000") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise ValueError("must be a URL such as http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a login; use api_key_file or api_key_env")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise ValueError("must end after the port: the paths (/v1/..., /metrics) are added to it")
    return value.rstrip("/")


def listen_address(value: str) -> str:
    """Accept host:port to listen on; "" for none."""
    if not value:
        return value
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("must be host:port, for example 127.0.0.1:8700")
    return value


_LIMITS = ("ttft_p95", "tpot_p95", "e2e_p95", "error_rate")


def figure_limits(value: Any) -> Any:
    """Accept a table of limits: known figures, each a share from 0 on."""
    for key, share in value.items():
        if key not in _LIMITS:
            raise ValueError(f"has an unknown key {key!r}; known: {', '.join(_LIMITS)}")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 100:
            raise ValueError(f"{key} must be a share such as 0.1, not {share!r}")
    return value


def window(value: str) -> str:
    """Accept a maintenance window."""
    if not is_window(value):
        raise ValueError(f"{value[:40]!r} is no window such as '02:00-05:30' or 'Sat,Sun 22:00-06:00'")
    return value


def host_path(value: str) -> str:
    """Accept an absolute path on the host, or ""."""
    if value and not value.startswith("/"):
        raise ValueError("must be an absolute path on the host")
    return value


def env_name(value: str) -> str:
    """Accept the name of an environment variable, or ""."""
    if value and not _ENV.fullmatch(value):
        raise ValueError("must be the name of an environment variable, not a value")
    return value


def no_option(value: str) -> str:
    """Refuse words that a program would take for an option, and blanks."""
    if value.startswith("-"):
        raise ValueError("must not begin with a dash")
    if value != value.strip() or " " in value:
        raise ValueError("must be one word, without blanks or options")
    return value


def without_keys(*keys: str) -> Rule:
    """Return a rule for a table that must leave some keys to specd."""

    def rule(value: Any) -> Any:
        taken = [key for key in keys if key in value]
        if taken:
            raise ValueError(f"must not hold {', '.join(taken)}: specd sets that itself")
        return value

    return rule
