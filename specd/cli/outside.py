"""Servers that no unit of the scope asked about runs: containers by themselves, processes, and other people's units."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from specd.cli.text import clean
from specd.engines.masking import mask_words
from specd.hosts.host import Host

__all__ = ["Outside", "outside_of_units"]

# kind, where and words of each, by tabs; no pattern matches this text itself. A login's own systemd is no service.
_SCRIPT = """\
for tool in docker podman; do
  command -v $tool >/dev/null && $tool ps --format '{{.Names}} {{.Image}} {{.Command}}' 2>/dev/null |
    grep -iE 'vllm|sglang|llama' | while read -r name rest; do printf 'container\\t%s\\t%s\\n' "$name" "$rest"; done
done
for process in /proc/[0-9]*; do
  words=$(tr '\\0' ' ' <"$process/cmdline") 2>/dev/null
  case $words in
    *vllm\\ serv[e]*|*vllm.entrypoint[s]*|*sglang.launch_serve[r]*|*llama-serve[r]\\ *) ;;
    *) continue ;;
  esac
  group=$(cat "$process/cgroup" 2>/dev/null)
  login=$(stat -c %U "$process" 2>/dev/null)
  case $group in
    *docker*|*libpod*) continue ;;
    *user@*.service/*.service*) kind=user ;;
    *user@*.service/*) kind=pid ;;
    *.service*) continue ;;
    *) kind=pid ;;
  esac
  case $kind in
    user) unit=${group##*/}; printf 'user\\t%s of %s\\t%s\\n' "${unit%%[!A-Za-z0-9@._:-]*}" "$login" "$words" ;;
    pid) printf 'pid\\t%s\\t%s\\n' "${process#/proc/}" "$words" ;;
  esac
done 2>/dev/null
:"""
_WITHIN_S = 20.0
_WHAT = {
    "container": (
        "a container that no unit here runs",
        "a container by itself: specd drives units only; put `docker run --rm` or `podman run --rm` into one",
    ),
    "pid": (
        "runs outside of a unit",
        "write a systemd unit for such a server first: specd drives units only",
    ),
    "user": (
        "a user's own unit",
        "a user's own unit: import it as that user, with --scope user",
    ),
}


@dataclass(frozen=True, slots=True)
class Outside:
    """A server that can't be imported as it is: where it runs, what that is, its words, and what to do."""

    where: str
    what: str
    words: str
    advice: str


async def outside_of_units(host: Host, command_lines: Sequence[Sequence[str]], *, scope: str) -> list[Outside]:
    """Look for servers besides those of the units whose command lines are given."""
    done = await host.run(["sh", "-c", _SCRIPT], check=False, timeout_s=_WITHIN_S)
    found: dict[str, Outside] = {}
    for line in done.text.splitlines():
        kind, where, words = ([*line.split("\t"), "", ""])[:3]
        if kind not in _WHAT or (kind == "user" and scope == "user"):
            continue
        if kind == "container" and _is_of_a_unit(where, words.partition(" ")[0], command_lines):
            continue
        what, advice = _WHAT[kind]
        shown = clean(where) if kind == "user" else f"{kind} {clean(where)}"
        found.setdefault(shown, Outside(shown, what, clean(" ".join(mask_words(words.split()))), advice))
    return list(found.values())


def _is_of_a_unit(name: str, image: str, command_lines: Sequence[Sequence[str]]) -> bool:
    """True for a container that a unit's command line names, or whose image it runs without naming it."""
    for words in command_lines:
        if f"--name={name}" in words or any(pair == ("--name", name) for pair in itertools.pairwise(words)):
            return True
        is_named = any(word == "--name" or word.startswith("--name=") for word in words)
        if image in words and not is_named:
            return True
    return False
