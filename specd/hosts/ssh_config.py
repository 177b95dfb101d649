"""The user's ssh configuration: which files count, and what they ask for that is not done here.

Honoured, for every hop by its own part of the files: Host, Match, Include, HostName, User, Port, ProxyJump,
ProxyCommand, IdentityFile, IdentitiesOnly, IdentityAgent, CertificateFile, PKCS11Provider, PreferredAuthentications,
UserKnownHostsFile, GlobalKnownHostsFile, HostKeyAlias, HostKeyAlgorithms, KexAlgorithms, Ciphers, MACs,
CASignatureAlgorithms, AddressFamily, BindAddress, Compression, RekeyLimit, TCPKeepAlive, SetEnv and the Canonicalize
ones. Without effect on purpose: ControlMaster and its kin (one connection is kept anyway), SendEnv, forwards,
RequestTTY, RemoteCommand, ServerAliveInterval and ConnectTimeout (the settings of specd's own configuration count).
"""

import fnmatch
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from specd.errors import HostError
from specd.settings import HostSettings

__all__ = ["config_files", "unsupported_directives"]

_USER_CONFIG = Path("~/.ssh/config")
_SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
_DEEPEST_INCLUDE = 16
_NEVER_STRICT = {"no", "off", "accept-new"}
_UNSUPPORTED = {
    "bindinterface": "BindInterface is not supported",
    "hostbasedacceptedalgorithms": "HostbasedAcceptedAlgorithms is not supported",
    "knownhostscommand": "KnownHostsCommand is not supported: put the host's key into a known_hosts file",
    "localcommand": "LocalCommand is not run",
    "proxyusefdpass": "ProxyUseFdpass is not supported",
    "pubkeyacceptedalgorithms": "PubkeyAcceptedAlgorithms is not supported",
    "pubkeyacceptedkeytypes": "PubkeyAcceptedKeyTypes is not supported",
    "requiredrsasize": "RequiredRSASize is not checked",
    "revokedhostkeys": "RevokedHostKeys is not read: mark the key @revoked in a known_hosts file",
    "securitykeyprovider": "SecurityKeyProvider is not supported",
    "verifyhostkeydns": "VerifyHostKeyDNS is not supported: put the host's key into a known_hosts file",
}


def config_files(settings: HostSettings) -> list[Path]:
    """Return the client configuration that counts: the one named in the settings alone (as `ssh -F`), or the usual."""
    if settings.ssh_config:
        named = Path(settings.ssh_config).expanduser()
        if not named.is_file():
            raise HostError(f"the ssh configuration {named} of host {settings.name} does not exist", host=settings.name)
        return [named]
    return [path for path in (_USER_CONFIG.expanduser(), _SYSTEM_CONFIG) if os.access(path, os.R_OK)]


def unsupported_directives(settings: HostSettings) -> list[str]:
    """Return what the configuration says for this host or its hops and specd does not do, each as `FILE:LINE: words`.

    A Match block counts as one that may apply. Reads files: not for an event loop. Raises HostError for a file that
    the settings name and that is not there.
    """
    wanted, names = [_name_of(settings.ssh)], set[str]()
    notes: dict[str, None] = {}
    while wanted:
        name = wanted.pop()
        if name in names:
            continue
        names.add(name)
        for file in config_files(settings):
            for place, option, values in _lines_for(name, file, 0):
                if option == "proxyjump":
                    wanted += [_name_of(jump) for jump in values[0].split(",") if jump.lower() != "none"]
                elif option == "stricthostkeychecking" and values[0].lower() in _NEVER_STRICT:
                    notes[f"{place}: StrictHostKeyChecking {values[0]} has no effect: keys are always checked"] = None
                elif option in _UNSUPPORTED and values[0].lower() not in ("no", "none"):
                    notes[f"{place}: {_UNSUPPORTED[option]}"] = None
    return list(notes)


def _name_of(written: str) -> str:
    place = written.removeprefix("ssh://").rstrip("/").rpartition("@")[2]
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0] if place.count(":") == 1 else place


def _lines_for(name: str, file: Path, depth: int) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Iterate over what applies to a host name: place, option in small letters, values."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return
    applies = True
    for number, line in enumerate(text.splitlines(), 1):
        words = _words(line)
        if len(words) < 2:
            continue
        option, values = words[0].lower(), words[1:]
        if option == "host":
            applies = _matches(name, values)
        elif option == "match":
            applies = True
        elif applies and option == "include" and depth < _DEEPEST_INCLUDE:
            for pattern in values:
                below = Path(pattern).expanduser()
                root = Path("/") if below.is_absolute() else Path("~/.ssh").expanduser()
                for included in sorted(root.glob(str(below.relative_to("/") if below.is_absolute() else below))):
                    yield from _lines_for(name, included, depth + 1)
        elif applies:
            yield f"{file}:{number}", option, values


def _words(line: str) -> list[str]:
    bare = line.strip()
    if not bare or bare.startswith("#"):
        return []
    try:
        return shlex.split(re.sub(r"^(\w+)\s*=\s*", r"\1 ", bare))
    except ValueError:
        return []


def _matches(name: str, patterns: Sequence[str]) -> bool:
    hit = False
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            hit = True
    return hit
