"""The server in a unit's command line: which engine it is, what it was told, how to tell it something else."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specd.checks import Check
from specd.engines.container import with_environment
from specd.engines.engine import Engine, FlagValue, ServerCommand
from specd.engines.opening import Opened, open_line
from specd.engines.registry import by_name, recognise
from specd.errors import EngineError
from specd.hosts.host import Host

__all__ = ["Server", "read_server"]


@dataclass(frozen=True, slots=True)
class Server:
    """A server as a unit starts it. `command` has address and port as its host sees them, and all flags that count."""

    engine: Engine
    command: ServerCommand
    line: Opened
    environment: Mapping[str, str]
    directory: str

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secret values in its command line and environment."""
        return (
            *self.engine.secrets(self.line.argv, self.environment),
            *self.engine.secrets(self.line.words, self.line.environment),
        )

    def changed(
        self, flags: Mapping[str, FlagValue], env: Mapping[str, str | None]
    ) -> tuple[tuple[str, ...], Mapping[str, str | None]]:
        """Return the unit's command line for other flags, and what of the variables the unit itself has to set.

        Raises EngineError for what can't be changed there.
        """
        argv = self.line.embed(self.engine.change(self.line.words, flags, self.command.file_flags))
        if self.line.container is None:
            return argv, env
        if not self.line.container.is_on_host_network and (moved := {"port", "host"} & flags.keys()):
            raise EngineError(
                f"--{min(moved)} inside a container is not what clients see",
                next_step="change the port that is published in the unit itself",
            )
        return with_environment(argv, env), {}

    async def examine(self, host: Host, *, user: str, timeout_s: float, before: "Server | None" = None) -> list[Check]:
        """See Engine.examine; asked in the surroundings that the command line makes."""
        return await self.engine.examine(
            host,
            self.line.words,
            env={**self.environment, **self.line.environment},
            user=user,
            cwd=self.line.directory or self.directory,
            timeout_s=timeout_s,
            before=before.line.words if before is not None else (),
        )


async def read_server(
    host: Host, argv: Sequence[str], environment: Mapping[str, str], directory: str, *, engine: str = "auto"
) -> Server | None:
    """Find the server in a unit's command line, looking through what stands in front; None for no server that is known.

    `environment` and `directory` are the unit's. Raises EngineError where a server may be there and can't be reached,
    and HostUnreachable.
    """
    line = await open_line(host, argv, environment, directory)
    if engine == "auto":
        found = recognise(line.words)
    else:
        asked = by_name(engine)
        own = asked.recognise(line.words)
        found = (asked, own) if own else None
    if found is None:
        return None
    known, command = found
    command = await known.with_files(host, command, line.words, line.directory or directory)
    # The container's client is told with its image already.
    wrappers = [word for word in command.wrapper.split(", ") if word and f"`{word}`" not in " ".join(line.inside)]
    command = dataclasses.replace(command, wrapper=", ".join((*line.inside, *wrappers)))
    if line.container is not None:
        published = line.container.published(command.port)
        if published is None:
            raise EngineError(
                f"port {command.port} of the container is not published on its host",
                next_step=f"publish it (-p 127.0.0.1:{command.port}:{command.port}), or use --network host",
            )
        address = command.address if line.container.is_on_host_network else published[0]
        command = dataclasses.replace(command, address=address, port=published[1], in_container=True)
    return Server(known, command, line, environment, directory)
