"""From what one would type after `ssh` to the logins that lead there, each by its own part of the configuration."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from specd.errors import HostError
from specd.hosts.ssh_config import config_files
from specd.settings import HostSettings

__all__ = ["Hop", "HopPlan", "plan", "target"]

_USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_MOST_HOPS = 8


@dataclass(frozen=True, slots=True)
class Hop:
    """A place to log in to, as it was written."""

    alias: str
    user: str = ""
    port: int = 0

    def __str__(self) -> str:
        name = f"[{self.alias}]" if ":" in self.alias else self.alias
        return (f"{self.user}@" if self.user else "") + name + (f":{self.port}" if self.port else "")


@dataclass(frozen=True, slots=True)
class HopPlan:
    """A hop with what the configuration says about it."""

    hop: Hop
    host: str
    port: int
    user: str
    key_name: str
    known_hosts: tuple[Path, ...]
    identities: tuple[str, ...] | None
    """The keys that are named and there; None when none are named."""
    proxy_command: str


def target(text: str) -> Hop:
    """Read `alias`, `user@host`, `host:port`, `[v6]:port` or `ssh://user@host:port`; raises HostError."""
    rest = text.removeprefix("ssh://").rstrip("/") if text.startswith("ssh://") else text
    user, _, place = rest.rpartition("@")
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        port = port.removeprefix(":")
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    else:
        host, port = place, ""
    if not host or host.startswith("-") or (port and not port.isdecimal()):
        raise HostError(f"{text!r} is not something to log in to (alias, or user@host:port)")
    return Hop(host, user, int(port or 0))


async def plan(settings: HostSettings) -> tuple[list[HopPlan], list[Path]]:
    """Return the hops to the host, the host itself last, and the configuration files; raises HostError."""
    files = await asyncio.to_thread(config_files, settings)
    try:
        hops = await asyncio.to_thread(_resolve, target(settings.ssh), files, settings, ())
    except (ValueError, OSError, asyncssh.Error) as problem:
        what = f"the ssh configuration for {settings.name} can't be used: {problem}"
        raise HostError(what, host=settings.name) from problem
    return hops, files


def _resolve(hop: Hop, files: Sequence[Path], settings: HostSettings, seen: tuple[Hop, ...]) -> list[HopPlan]:
    if hop in seen or len(seen) >= _MOST_HOPS:
        raise ValueError(f"ProxyJump leads in a circle: {' -> '.join(map(str, (*seen, hop)))}")
    options = _options(hop, files)
    jumps = [target(jump) for jump in str(options.tunnel or "").split(",") if jump]
    before: list[HopPlan] = []
    if jumps:
        # As with ssh -J: only the first jump may have a jump of its own, the others have been told theirs.
        before = _resolve(jumps[0], files, settings, (*seen, hop))
        before += [_planned(jump, _options(jump, files), settings) for jump in jumps[1:]]
    return [*before, _planned(hop, options, settings)]


def _options(hop: Hop, files: Sequence[Path]) -> asyncssh.SSHClientConnectionOptions:
    return asyncssh.SSHClientConnectionOptions(
        config=[str(file) for file in files],
        host=hop.alias,
        username=hop.user or (),
        port=hop.port or (),
        client_keys=None,
    )


def _planned(hop: Hop, options: asyncssh.SSHClientConnectionOptions, settings: HostSettings) -> HopPlan:
    written = options.config.get("IdentityFile", [])
    names = [str(name) for name in written] if isinstance(written, list) else []
    identities = [os.path.expanduser(name) for name in names]
    proxy = options.config.get("ProxyCommand")
    return HopPlan(
        hop=hop,
        host=options.host,
        port=options.port,
        user=options.username,
        key_name=options.host_key_alias or options.host,
        known_hosts=_known_hosts(options, settings),
        # A file that is not there is not an error to ssh.
        identities=tuple(path for path in identities if os.access(path, os.R_OK)) if identities else None,
        proxy_command=str(proxy) if proxy else "",
    )


def _known_hosts(options: asyncssh.SSHClientConnectionOptions, settings: HostSettings) -> tuple[Path, ...]:
    """Return the files of trusted keys; `UserKnownHostsFile none` leaves the system's, and never means no check."""
    if settings.known_hosts:
        return (Path(settings.known_hosts).expanduser(),)
    names: list[str] = []
    for option, usual in (("UserKnownHostsFile", _USER_KNOWN_HOSTS), ("GlobalKnownHostsFile", _SYSTEM_KNOWN_HOSTS)):
        written = options.config.get(option)
        names += [str(name) for name in written] if isinstance(written, list) else usual
    tokens = {
        "%%": "%",
        "%d": str(Path.home()),
        "%h": options.host,
        "%k": options.host_key_alias or options.host,
        "%n": options.orig_host,
        "%p": str(options.port),
        "%r": options.username,
        "%i": str(os.getuid()),
    }
    return tuple(Path(_expanded(name, tokens)).expanduser() for name in names)


def _expanded(name: str, tokens: dict[str, str]) -> str:
    parts: list[str] = []
    rest = name
    while rest:
        before, sign, after = rest.partition("%")
        parts.append(before)
        if not sign:
            break
        parts.append(tokens.get("%" + after[:1], "%" + after[:1]))
        rest = after[1:]
    return "".join(parts)
