"""The rehearsal engine as an Engine: vLLM's command line, log and metrics, with an acceptance test of its own."""

import posixpath
import re
from collections.abc import Mapping, Sequence

from specd.checks import Check, CheckStatus
from specd.engines import masking
from specd.engines.asking import CantAsk, Question, ask, last_json_line
from specd.engines.programs import Programs
from specd.engines.vllm.engine import Vllm
from specd.engines.vllm.examine import examine
from specd.engines.vllm.opinion import ACCEPTS, check_of, used_flags
from specd.errors import PrivilegeRefused
from specd.hosts.host import Host

__all__ = ["Rehearsal"]

_ARCHIVE = re.compile(r"(?:specd[-_.])?rehearsal[\w.-]*\.pyz$")
_VLLM_MODULE = "vllm.entrypoints.openai.api_server"


def _own_words(rest: Sequence[str]) -> int | None:
    if tuple(rest[:1]) == ("serve",):
        return 1
    if tuple(rest[:2]) == ("-m", _VLLM_MODULE):
        return 2
    return 0 if rest and rest[0].startswith("--") and rest[0] != "--version" else None


def _executable(path: str, rest: Sequence[str]) -> int | None:
    return _own_words(rest) if _ARCHIVE.fullmatch(posixpath.basename(path)) else None


def _module(name: str, rest: Sequence[str]) -> int | None:
    return _own_words(rest) if name == "specd.rehearsal" else None


class Rehearsal(Vllm):
    """The program that stands in for vLLM in a rehearsal."""

    name = "rehearsal"
    programs = Programs("the rehearsal engine", _executable, _module)

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
        question = Question(argv=tuple(argv), found=self._found(argv), env=env, user=user, cwd=cwd, timeout_s=timeout_s)
        checks = await examine(host, self.name, question, _ask_rehearsal)
        return [_as_it_matters_here(check) for check in checks]


def _as_it_matters_here(check: Check) -> Check:
    """This program reads no weights: what the real engine would miss in the files is only a warning here."""
    if check.status is CheckStatus.FAILED and check.name in {"engine.model", "engine.draft"}:
        return Check.warning(check.name, f"{check.evidence} (the real engine would not start)", check.fix)
    return check


async def _ask_rehearsal(host: Host, question: Question) -> list[Check]:
    """Run the program's own `check`, which is the code of a real start without the start."""
    found = question.found
    program = list(question.argv[found.program_at : found.server_at])
    own: list[str] = []
    for ending in (["serve"], ["-m", _VLLM_MODULE]):
        if program[-len(ending) :] == ending:
            own = ending
            program = program[: -len(ending)]
    words: list[str | None] = [*program, "check", "--", *own, *question.server_words]
    if found.python:
        words[0] = None
    secrets = masking.secrets_in(question.argv, question.env)
    try:
        answer = await ask(host, question, words, {})
    except (CantAsk, PrivilegeRefused) as why:
        return [Check.unchecked(ACCEPTS, masking.mask(str(why), secrets))]
    told = last_json_line(answer)
    if told is None:
        silent = f"no answer, status {answer.status}: {answer.error_text[-200:]}"
        return [Check.unchecked(ACCEPTS, masking.mask(silent, secrets))]
    check = check_of(told, used_flags(question), "rehearsal engine")
    return [Check(check.name, check.status, masking.mask(check.evidence, secrets), check.fix)]
