"""This machine as a host that remembers which commands it was asked to run."""

from collections.abc import Mapping, Sequence

from specd.hosts.host import Completed
from specd.hosts.local import LocalHost
from specd.settings import HostSettings


class LocalCommands(LocalHost):
    """The real local host; `commands` are all that ran, and a write is a failure of the test."""

    def __init__(self) -> None:
        super().__init__(HostSettings(name="here"))
        self.commands: list[tuple[str, ...]] = []

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        privileged: bool = False,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        self.commands.append(tuple(argv))
        return await super().run(argv, stdin=stdin, timeout_s=timeout_s, privileged=privileged, check=check, env=env)

    async def write(self, path: str, content: bytes, *, mode: int = 0o644, privileged: bool = False) -> None:
        raise AssertionError(f"nothing may be written: {path}")

    async def remove(self, path: str, *, privileged: bool = False) -> None:
        raise AssertionError(f"nothing may be removed: {path}")
