"""What a test may ask of a host when it is made; what can change while it runs is a method of TestHost."""

import sys
from dataclasses import dataclass
from pathlib import Path

USR = Path("/usr")


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory of this machine that appears inside, at the same path unless told otherwise."""

    source: Path
    target: Path | None = None
    writable: bool = False

    def line(self) -> str:
        """Return the form the boot script reads: mode, source and target, parted by tabs."""
        target = self.target or self.source
        return f"{'rw' if self.writable else 'ro'}\t{self.source}\t{target}\n"


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Fixed properties of a host; the second user `operator` always exists and sees the whole journal."""

    binds: tuple[Bind, ...] = ()
    operator_sudoers: str | None = None
    """Text of a sudoers file, such as "operator ALL=(root) NOPASSWD: /usr/bin/systemctl"; None gives no rights."""
    max_sessions: int = 50
    """sshd's limit of channels over one connection."""
    user_instance: bool = False
    """Whether operator has a lingering `systemd --user`; brings logind and PAM sessions with it."""


def project_binds(repository: Path) -> tuple[Bind, ...]:
    """Return what must be bound so that the running virtual environment and the repository work inside."""
    wanted = {repository.resolve(), Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    outside = sorted(path for path in wanted if not path.is_relative_to(USR))
    whole = [path for path in outside if not any(other in path.parents for other in outside)]
    return tuple(Bind(path) for path in whole)
