"""Runs a question to an installed engine in the service's own surroundings: its Python, user, environment, directory.

Nothing is written to the host: programs go over the command line, questions over stdin.
"""

import json
import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from specd.engines.container import ContainerRun, read_container
from specd.engines.programs import Found
from specd.errors import CommandFailed, CommandTimedOut, EngineError, HostError
from specd.hosts.host import Completed, Host

__all__ = ["CantAsk", "Question", "ask", "last_json_line"]

_LAUNCHER = (resources.files(__package__) / "launch.py.txt").read_text(encoding="utf-8")
_SHEBANG_BYTES = 512
_LONG_SHEBANG = re.compile(r"'''exec' \"?(?P<python>/[^\"\n]+?)\"? \"\$0\"")
_PYTHON_NAME = re.compile(r"(python|pypy)[0-9.]*t?$")
_CLEANUP_S = 5.0
# How the launcher, a shell or the host says that it went no further.
_TIME_IS_UP = 124
_NOT_RUN = frozenset({125, 126, 127})
# Whatever the service may do online, a question must be answered from what is on the host.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to ask about: a whole command line, where its program stands in it, and the service's surroundings.

    `before` are the server's own words as they are now, () where nothing is to be compared.
    """

    argv: tuple[str, ...]
    found: Found
    env: Mapping[str, str]
    user: str
    cwd: str
    timeout_s: float
    before: tuple[str, ...] = ()

    @property
    def container(self) -> ContainerRun | None:
        """The container that the engine runs in; None where it runs on the host itself."""
        at = self.found.launch.container_at
        return None if at is None else read_container(self.argv, at)

    @property
    def server_words(self) -> tuple[str, ...]:
        return self.argv[self.found.server_at :]


class CantAsk(EngineError):
    """The question could not be put; says nothing about what is asked."""

    code = "cant-ask"


async def ask(host: Host, question: Question, argv: Sequence[str | None], about: Mapping[str, Any]) -> Completed:
    """Run `argv` (None stands for the service's Python) with `about` as JSON on stdin, in the service's surroundings.

    Any exit status is an answer. Raises CantAsk where it could not be run or took too long, and HostUnreachable.
    """
    if question.container is not None:
        raise CantAsk("the engine is inside a container, where it is not asked")
    shaping = question.found.launch.shaping
    interpreter = [*shaping, "python"] if shaping else [await _python(host, question)]
    order = {
        "argv": list(argv),
        "question": about,
        "env": {**question.env, **dict(question.found.launch.assignments), **_OFFLINE},
        "keep_environment": bool(shaping),
        "cwd": question.cwd.removeprefix("-").removeprefix("!"),
        "limit_s": max(1, math.ceil(question.timeout_s)),
    }
    prefix, is_privileged = await _as_user(host, question.user)
    try:
        answer = await host.run(
            [*prefix, *interpreter, "-c", _LAUNCHER],
            stdin=json.dumps(order).encode(),
            timeout_s=question.timeout_s + _CLEANUP_S,
            privileged=is_privileged,
            check=False,
        )
    except CommandTimedOut:
        raise CantAsk(f"no answer within {question.timeout_s:g} s") from None
    except CommandFailed as error:
        raise CantAsk(str(error)) from None
    if answer.status == _TIME_IS_UP:
        raise CantAsk(f"no answer within {question.timeout_s:g} s")
    if answer.status in _NOT_RUN and not answer.stdout.strip():
        raise CantAsk(f"the engine could not be asked: {_last_line(answer.error_text)}")
    return answer


def last_json_line(answer: Completed) -> dict[str, Any] | None:
    """Return the JSON object on the last line of an answer's stdout, None if there is none."""
    for line in reversed(answer.text.strip().splitlines()):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except json.JSONDecodeError:
            return None
        return told if isinstance(told, dict) else None
    return None


async def _as_user(host: Host, user: str) -> tuple[list[str], bool]:
    """Return the words that run a command as the service's user, and whether they need rights."""
    if not user:
        return [], False
    login = (await host.run(["id", "-un"])).text.strip()
    if user == login:
        return [], False
    if user == "root":
        return [], True
    if await host.tool("runuser") is not None:
        return ["runuser", "-u", user, "--"], True
    if await host.tool("setpriv") is not None:
        return ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"], True
    raise CantAsk(f"the host has neither runuser nor setpriv to become {user}")


async def _python(host: Host, question: Question) -> str:
    """Return the interpreter that the service's program runs with: named, from its first line, or beside it."""
    program = question.found.python or question.argv[question.found.program_at]
    if not program.startswith("/"):
        resolved = await host.tool(program)
        if resolved is None:
            raise CantAsk(f"{program} is not found on the host")
        program = resolved
    if _PYTHON_NAME.fullmatch(posixpath.basename(program)):
        return program
    python = _shebang_python(await _head(host, program))
    if python is not None:
        return python
    beside = posixpath.join(posixpath.dirname(program), "python")
    if (await host.run(["test", "-x", beside], check=False)).status == 0:
        return beside
    raise CantAsk(f"no Python interpreter found behind {program}")


async def _head(host: Host, path: str) -> str:
    command = ["head", "-c", str(_SHEBANG_BYTES), "--", path]
    answer = await host.run(command, check=False)
    if answer.status != 0:
        try:
            answer = await host.run(command, check=False, privileged=True)
        except HostError:
            return ""
    return answer.text if answer.status == 0 else ""


def _shebang_python(head: str) -> str | None:
    """Return the interpreter that a script's beginning names, also in the two-line form for long paths."""
    if not head.startswith("#!"):
        return None
    words = head.split("\n", 1)[0][2:].split()
    if words and _PYTHON_NAME.fullmatch(posixpath.basename(words[0])):
        return words[0]
    long_form = _LONG_SHEBANG.search(head)
    return long_form["python"] if long_form else None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "no message"
