"""Generated words, variables and unit texts for systemd, and what the processes started from them were really given."""

import io
import json
import random
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.host.systemd_rig import NASTY
from tests.testhost import TestHost

T = TypeVar("T")

# Stops itself, so that its command line and environment can be looked at from outside, as the kernel holds them.
STANDING = ("/bin/sh", "-c", "kill -STOP $$", "standing")

_PIECES = st.lists(st.sampled_from(NASTY), max_size=12).map("".join)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
).map(json.dumps)
WORDS = st.one_of(_PIECES, _PIECES, st.text(max_size=20), _JSON).map(lambda text: text.replace("\0", "\\0"))
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True).filter(lambda name: name not in _OWN)
# Set by systemd or by the shell that stands.
_OWN = {"PATH", "LANG", "PWD", "OLDPWD", "SHLVL", "_"}
# What only a refusal can answer, and what is long.
ODD_WORDS = st.one_of(
    st.just("\0"),
    st.sampled_from("\ud800\udfff\ufdd0\ufffe\U0001ffff"),
    st.builds(lambda piece, times: (piece or "x") * times, _PIECES, st.integers(1000, 12_000)),
)
ODD_CASES = st.tuples(
    st.lists(st.one_of(WORDS, ODD_WORDS), min_size=1, max_size=4),
    st.dictionaries(NAMES, st.one_of(WORDS, ODD_WORDS), max_size=3),
)


def drawn(strategy: st.SearchStrategy[T], count: int, number: int) -> list[T]:
    """Return `count` examples that hypothesis thinks of, the same ones for the same number."""
    found: list[T] = []

    @seed(number)
    @settings(
        max_examples=count, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=HealthCheck
    )
    @given(strategy)
    def collect(example: T) -> None:
        found.append(example)

    collect()
    return found


def ordinary_cases(count: int, number: int) -> list[tuple[list[str], dict[str, str]]]:
    """Return command lines and environments put together from words and names that hypothesis thinks of."""
    rng = random.Random(number)
    words, names = drawn(WORDS, 1500, number), sorted(set(drawn(NAMES, 200, number)))
    return [
        (
            rng.choices(words, k=rng.randrange(1, 9)),
            {name: rng.choice(words) for name in rng.sample(names, rng.randrange(5))},
        )
        for _ in range(count)
    ]


class Given(NamedTuple):
    """What a process was started with."""

    words: list[str]
    environment: dict[str, str]


def put_all(host: TestHost, files: Mapping[str, str | bytes]) -> None:
    """Write many files by one command."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            body = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    host.exec(["tar", "-x", "-C", "/", "--no-same-owner"], stdin=packed.getvalue())


def started(host: TestHost, units: Sequence[str]) -> dict[str, Given]:
    """Start units of Type=exec, all at once, and return what each one's process has; one that failed is not there."""
    host.systemctl("daemon-reload")
    host.systemctl("start", *units, check=False)
    shown = host.systemctl("show", "--property=Id", "--property=ControlGroup", *units)
    found: dict[str, Given | None] = {}
    for block in shown.split("\n\n"):
        unit, group = sorted(block.split("\n"), reverse=True)
        found[unit.removeprefix("Id=")] = _given(host.cgroup / group.removeprefix("ControlGroup=").lstrip("/"))
    return {unit: there for unit, there in found.items() if there}


def _given(cgroup: Path) -> Given | None:
    # One that has no process has no group, or the host's own.
    pids = (cgroup / "cgroup.procs").read_text().split() if cgroup.name.endswith(".service") and cgroup.exists() else []
    if not pids:
        return None
    return _parsed(*(Path("/proc", pids[0], name).read_bytes() for name in ("cmdline", "environ")))


def given_to(host: TestHost, pid: int) -> Given:
    """Return what a process was started with, by its PID on the host."""
    return _parsed(*(Path(f"/proc/{host.pid1}/root/proc/{pid}", name).read_bytes() for name in ("cmdline", "environ")))


def _parsed(words: bytes, entries: bytes) -> Given:
    pairs = (entry.decode().partition("=") for entry in entries.split(b"\0")[:-1])
    return Given([word.decode() for word in words.split(b"\0")[:-1]], {name: value for name, _, value in pairs})


def ended(host: TestHost, units: Sequence[str], files: Sequence[str]) -> None:
    """Kill the units' processes and remove their files."""
    host.systemctl("kill", "--signal=KILL", *units, check=False)
    host.exec(["xargs", "-0", "rm", "-rf", "--"], stdin="\0".join(files))
    host.systemctl("daemon-reload")
    host.systemctl("reset-failed", check=False)


RECORDER = "/usr/local/bin/given"
STANDS = "stands"
# Writes its command line and environment, as the kernel holds them, into the file named by its first word, or stands.
_RECORDER_SCRIPT = f"""\
[ "$1" = {STANDS} ] && kill -STOP $$
cat "/proc/$$/cmdline" /dev/shm/given/-- "/proc/$$/environ" >"/dev/shm/given/$1"
"""
_MIDDLE = b"\0-- between the two --\0"


def put_recorder(host: TestHost) -> None:
    """Install the program that `/bin/sh` runs for a command whose second word is RECORDER, its third a file's name."""
    put_all(host, {RECORDER: _RECORDER_SCRIPT, "/dev/shm/given/--": _MIDDLE})
    host.exec(["chmod", "777", "/dev/shm/given"])


def recorded(host: TestHost) -> dict[str, Given]:
    """Return what each recorded process was given, by the file's name, and forget it."""
    found: dict[str, Given] = {}
    for file in Path(f"/proc/{host.pid1}/root/dev/shm/given").iterdir():
        if file.name != "--":
            found[file.name] = _parsed(*file.read_bytes().split(_MIDDLE))
            file.unlink()
    return found
