"""vLLM as an Engine."""

from collections.abc import Mapping, Sequence
from typing import Any

from specd.checks import Check
from specd.engines import masking
from specd.engines.asking import Question
from specd.engines.engine import NO_FILE_FLAGS, Counters, Failure, FileFlags, FlagValue, LogReader, ServerCommand
from specd.engines.exits import explain, log_end
from specd.engines.exposition import read_counters
from specd.engines.programs import Found, Programs, find_program
from specd.engines.vllm import command, speculation
from specd.engines.vllm.config_file import read_config_file
from specd.engines.vllm.examine import examine
from specd.engines.vllm.log import VllmReader
from specd.engines.vllm.metrics import VLLM_SERIES
from specd.engines.vllm.opinion import ask_vllm
from specd.errors import EngineError
from specd.hosts.host import Host

__all__ = ["Vllm"]


class Vllm:
    """vLLM's OpenAI-compatible server, 0.6 and newer."""

    name = "vllm"
    uses_graphs = True
    programs: Programs = command.VLLM_PROGRAMS

    def recognise(self, argv: Sequence[str]) -> ServerCommand | None:
        """See Engine.recognise."""
        found = find_program(argv, self.programs)
        return None if found is None else command.parse(self.name, argv, found)

    async def with_files(
        self, host: Host, command_line: ServerCommand, argv: Sequence[str], directory: str
    ) -> ServerCommand:
        """See Engine.with_files."""
        found = self._found(argv)
        if (path := command.config_file(argv[found.server_at :])) is None:
            return command_line
        file_flags = await read_config_file(host, command.FLAGS, path, directory)
        return command.parse(self.name, argv, found, file_flags)

    def change(
        self, argv: Sequence[str], flags: Mapping[str, FlagValue], file_flags: FileFlags = NO_FILE_FLAGS
    ) -> tuple[str, ...]:
        """See Engine.change."""
        return command.change(argv, self._found(argv).server_at, flags, file_flags)

    def is_json(self, flag: str) -> bool:
        """See Engine.is_json."""
        return command.is_json(flag)

    def secrets(self, argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
        """See Engine.secrets."""
        return masking.secrets_in(argv, env)

    async def examine(
        self,
        host: Host,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        user: str,
        cwd: str,
        timeout_s: float,
        before: Sequence[str] = (),
    ) -> list[Check]:
        """See Engine.examine."""
        question = Question(
            argv=tuple(argv),
            found=self._found(argv),
            env=env,
            user=user,
            cwd=cwd,
            timeout_s=timeout_s,
            before=tuple(before[self._found(before).server_at :]) if before else (),
        )
        return await examine(host, self.name, question, ask_vllm)

    def reader(self) -> LogReader:
        """See Engine.reader."""
        return VllmReader()

    def explain_exit(self, reader: LogReader, *, result: str, code: str, status: int) -> Failure:
        """See Engine.explain_exit."""
        return explain(log_end(reader), result=result, code=code, status=status)

    def counters(self, exposition: str) -> Counters:
        """See Engine.counters."""
        return read_counters(exposition, VLLM_SERIES)

    def speculation_seen(self, reader: LogReader, counters: Counters | None) -> Mapping[str, Any] | None:
        """See Engine.speculation_seen."""
        return speculation.seen(reader.facts(), counters)

    def speculation_asked(self, command_line: ServerCommand) -> Mapping[str, Any]:
        """See Engine.speculation_asked."""
        return command.speculation_asked(command_line)

    def _found(self, argv: Sequence[str]) -> Found:
        found = find_program(argv, self.programs)
        if found is None:
            raise EngineError(f"no {self.name} server in this command line: {' '.join(masking.mask_words(argv))[:200]}")
        return found
