"""Which host keys are trusted, as OpenSSH reads its known_hosts files, and what to say about one that is not.

A key is looked up by the name the host goes by, never by its address alone, and nothing is ever added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from specd.errors import HostKeyRejected

__all__ = ["KnownHosts", "TrustedKeys", "rejection"]

SSH_PORT = 22


@dataclass(frozen=True, slots=True)
class Entry:
    """One matching line."""

    file: Path
    line: int
    key: asyncssh.SSHKey
    is_revoked: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


TrustedKeys = tuple[
    Sequence[asyncssh.SSHKey],
    Sequence[asyncssh.SSHKey],
    Sequence[asyncssh.SSHKey],
    Sequence[asyncssh.SSHCertificate],
    Sequence[asyncssh.SSHCertificate],
    Sequence[str],
    Sequence[str],
]
"""Host keys, keys of authorities, revoked keys, and the same of X.509, which is not used."""


class KnownHosts:
    """The lines of known_hosts files; one that can't be read is skipped, as ssh does."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        self._lines: list[tuple[Path, int, asyncssh.SSHKnownHosts]] = []
        for file in files:
            try:
                text = file.read_text(errors="replace")
            except OSError:
                continue
            for number, line in enumerate(text.splitlines(), 1):
                try:
                    self._lines.append((file, number, asyncssh.import_known_hosts(line)))
                except ValueError:
                    continue

    def trusted(self, host: str, _address: str, port: int | None) -> TrustedKeys:
        """Return what asyncssh asks for: the keys for a host name and a port (None: the usual one)."""
        keys, authorities, revoked, _ = self._find(host, port)
        return keys, authorities, revoked, (), (), (), ()

    def entries(self, host: str, port: int | None) -> list[Entry]:
        """Return the lines that name a host and hold a plain key, trusted or revoked."""
        return self._find(host, port)[3]

    def _find(
        self, host: str, port: int | None
    ) -> tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[Entry]]:
        names = [host.lower()] if port in (None, SSH_PORT) else [f"[{host.lower()}]:{port}", host.lower()]
        for name in names:
            keys: list[asyncssh.SSHKey] = []
            authorities: list[asyncssh.SSHKey] = []
            revoked: list[asyncssh.SSHKey] = []
            entries: list[Entry] = []
            for file, number, line in self._lines:
                its_keys, its_authorities, its_revoked, *_ = line.match(name, "", None)
                keys += its_keys
                authorities += its_authorities
                revoked += its_revoked
                entries += [Entry(file, number, key) for key in its_keys]
                entries += [Entry(file, number, key, is_revoked=True) for key in its_revoked]
            if keys or authorities:
                break
        return keys, authorities, revoked, entries


def rejection(
    where: str, known: KnownHosts, host: str, port: int, shown: asyncssh.SSHKey | None, reason: str
) -> HostKeyRejected:
    """Return the error for a host key that is not trusted; `where` is the host as the user knows it."""
    entries = known.entries(host, port)
    name = host if port == SSH_PORT else f"[{host}]:{port}"
    its_key = f"it shows {_described(shown)}" if shown else "it shows none of a known type"
    if any(entry.is_revoked and entry.key == shown for entry in entries):
        revoked = next(entry for entry in entries if entry.is_revoked and entry.key == shown)
        return HostKeyRejected(f"the host key of {where} is revoked: {its_key}, revoked in {revoked}", host=where)
    if trusted := [entry for entry in entries if not entry.is_revoked]:
        ours = ", ".join(f"{_described(entry.key)} in {entry}" for entry in trusted)
        fix = (
            f"if {host} was installed anew, compare the fingerprint on the host itself (ssh-keygen -lf "
            f"/etc/ssh/ssh_host_ed25519_key.pub), then replace {trusted[0]} with: {_line(name, shown)}"
        )
        return HostKeyRejected(
            f"the host key of {where} has changed: {its_key}; known is {ours}", host=where, next_step=fix
        )
    if shown is None:
        return HostKeyRejected(f"the host key of {where} is not trusted: {reason}", host=where)
    file = known.files[0] if known.files else Path("~/.ssh/known_hosts")
    fix = (
        "compare the fingerprint on the host itself (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then add to "
        f"{file}: {_line(name, shown)}"
    )
    return HostKeyRejected(f"the host key of {where} is unknown: {its_key}", host=where, next_step=fix)


def _described(key: asyncssh.SSHKey) -> str:
    return f"{key.get_algorithm()} {key.get_fingerprint()}"


def _line(name: str, key: asyncssh.SSHKey | None) -> str:
    if key is None:
        return f"{name} KEYTYPE KEY"
    kind, content, *_ = key.export_public_key("openssh").decode().split()
    return f"{name} {kind} {content}"
