"""An engine whose flags, programs, log and series are tables, and which can't be asked beforehand."""

from collections.abc import Mapping, Sequence
from typing import Any

from specd.checks import Check
from specd.engines import masking
from specd.engines.asking import Question
from specd.engines.change import changed_words, read_flags
from specd.engines.engine import NO_FILE_FLAGS, Counters, Failure, FileFlags, FlagValue, LogReader, ServerCommand
from specd.engines.exits import explain, log_end
from specd.engines.exposition import Series, read_counters
from specd.engines.flags import FlagTable, Kind, canonical
from specd.engines.log_reader import RuleReader
from specd.engines.log_rules import LogRules
from specd.engines.model_files import check_model
from specd.engines.programs import Found, Programs, find_program, reachable_address
from specd.errors import EngineError
from specd.hosts.host import Host

__all__ = ["TableEngine"]


class TableEngine:
    """What engines besides vLLM share; each gives the tables and what is its own."""

    name: str
    uses_graphs: bool
    programs: Programs
    flags: FlagTable
    rules: LogRules
    series: Series
    default_port: int
    model_flags: tuple[str, ...]
    draft_flag: str

    def recognise(self, argv: Sequence[str]) -> ServerCommand | None:
        """See Engine.recognise."""
        found = find_program(argv, self.programs)
        if found is None:
            return None
        words = argv[found.server_at :]
        flags = read_flags(self.flags, words)
        model = next((str(flags[name]) for name in self.model_flags if isinstance(flags.get(name), str)), "")
        if not model:
            raise EngineError(f"this {self.name} command line names no model")
        port = str(flags.get("port", self.default_port))
        if not port.isdigit():
            raise EngineError(f"--port {port} is no number")
        host = flags.get("host")
        return ServerCommand(
            engine=self.name,
            server_at=found.server_at,
            flags=flags,
            model=model,
            served_name=self.served_name(flags, model),
            address=reachable_address(host if isinstance(host, str) else self.default_address()),
            port=int(port),
            wrapper=found.launch.wrapper,
        )

    def served_name(self, flags: Mapping[str, Any], model: str) -> str:
        """Return the name that clients must ask for."""
        named = flags.get("served-model-name")
        return named if isinstance(named, str) else model

    def default_address(self) -> str:
        """Return what the server listens on without a flag."""
        return "127.0.0.1"

    async def with_files(
        self, host: Host, command: ServerCommand, argv: Sequence[str], directory: str
    ) -> ServerCommand:
        """See Engine.with_files; this one reads none."""
        return command

    def change(
        self, argv: Sequence[str], flags: Mapping[str, FlagValue], file_flags: FileFlags = NO_FILE_FLAGS
    ) -> tuple[str, ...]:
        """See Engine.change."""
        found = self._found(argv)
        for name in self.model_flags:
            if name in flags and flags[name] in (None, "null", ""):
                raise EngineError("a server needs a model: it can be changed, not removed")
        return (*argv[: found.server_at], *changed_words(self.flags, argv[found.server_at :], flags))

    def is_json(self, flag: str) -> bool:
        """See Engine.is_json."""
        return self.flags.find(canonical(flag).partition(".")[0]).kind.is_json

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
        found = self._found(argv)
        question = Question(argv=tuple(argv), found=found, env=env, user=user, cwd=cwd, timeout_s=timeout_s)
        words = question.server_words
        flags = read_flags(self.flags, words)
        model = next((str(flags[name]) for name in self.model_flags if isinstance(flags.get(name), str)), "")
        checks = [self._flags_check(words), await check_model(host, "engine.model", model, cwd)]
        if isinstance(draft := flags.get(self.draft_flag), str):
            checks.append(await check_model(host, "engine.draft", draft, cwd))
        return [*checks, await self.opinion(host, question)]

    async def opinion(self, host: Host, question: Question) -> Check:
        """Return the engine's own opinion on a command line; this one has no way to be asked."""
        return Check.unchecked("engine.accepts", f"{self.name} has no way to check a command line without starting")

    def reader(self) -> LogReader:
        """See Engine.reader."""
        return RuleReader(self.rules)

    def explain_exit(self, reader: LogReader, *, result: str, code: str, status: int) -> Failure:
        """See Engine.explain_exit."""
        return explain(log_end(reader), result=result, code=code, status=status)

    def counters(self, exposition: str) -> Counters:
        """See Engine.counters."""
        return read_counters(exposition, self.series)

    def speculation_seen(self, reader: LogReader, counters: Counters | None) -> Mapping[str, Any] | None:
        """See Engine.speculation_seen."""
        seen = reader.facts().get("speculative")
        if isinstance(seen, dict):
            return seen
        if counters is None or counters.generation_tokens is None or counters.draft_tokens is None:
            return None
        positions = len(counters.accepted_by_position)
        return {"num_speculative_tokens": positions} if positions else None

    def _flags_check(self, words: Sequence[str]) -> Check:
        unknown = [use.spelling for use in self.flags.occurrences(words) if use.flag.kind is Kind.UNKNOWN]
        near = [f"{name}: did you mean --{close}?" for name in unknown if (close := self.flags.nearest(name))]
        if near:
            return Check.warning("engine.flags", f"not known here: {', '.join(unknown)}", " ".join(near))
        return Check.passed("engine.flags", f"{sum(1 for _ in self.flags.occurrences(words))} flags")

    def _found(self, argv: Sequence[str]) -> Found:
        found = find_program(argv, self.programs)
        if found is None:
            raise EngineError(f"no {self.name} server in this command line: {' '.join(masking.mask_words(argv))[:200]}")
        return found
