"""Collects errors and tracebacks from an interleaved log, by process, and ranks which of them is the root cause."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from specd.engines.log_rules import LogRules
from specd.engines.log_text import ENGINE, WORKER, Line

__all__ = ["Tracebacks", "Trouble"]

_TRACEBACK = "Traceback (most recent call last):"
_CHAIN = (
    "During handling of the above exception",
    "The above exception was the direct cause",
)
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Warning)?(?:\(\w+\))?(?::|$)"
)
# Ray tells a worker's whole traceback as the message of its own exception.
_TELLS_TRACEBACK = re.compile(r"(?:[\w.]*\.)?RayTaskError\b")
_ASKED_TO_END = re.compile(r"(?:[\w.]*\.)?(?:KeyboardInterrupt|SystemExit|CancelledError)\b")
_PROCESS_HEADER = re.compile(r"Process (?P<name>[\w.-]+):$")
_NEW_THING = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR):\s|usage: |\[[WE]\d|nanobind: ")
_ERROR_LEVELS = frozenset({"ERROR", "CRITICAL"})
# At these levels engines log requests, and with them whatever a client wrote.
_QUOTING_LEVELS = frozenset({"DEBUG", "INFO"})
# Further in, a line quotes what somebody else said.
_OWN_WORDS = 120
# An exception's own message can go on for some lines (pydantic); more than this is something else.
_MESSAGE_LINES = 10
_MOST_EXCEPTIONS = 32
_HEAD_LINES, _TAIL_LINES = 4, 20
_CONTEXT_LINES = 12
_LAST_WORDS_LINES = 40
_MOST_TROUBLES = 24
_MOST_PROCESSES = 256

ROOT, DEATH, POINTER = 0, 1, 2


@dataclass(slots=True)
class Trouble:
    """One error: how deep its process is, in which order it came, its lines, and the texts to classify, best first.

    `rank` is ROOT for an error of its own, DEATH for news of another process's end, POINTER for one that only points
    at another. `is_bare` is true for a traceback that went past the logger; `seen_at` counts lines.
    """

    depth: int
    order: int
    rank: int
    texts: list[str]
    lines: list[str]
    is_bare: bool = False
    seen_at: int = 0

    @property
    def summary(self) -> str:
        return self.texts[0].split("\n", 1)[0] if self.texts else (self.lines[-1] if self.lines else "")


@dataclass(slots=True)
class _Block:
    """An error being read: `header` is the logger's own line, `exceptions` each with the lines of its message."""

    depth: int
    order: int
    level: str
    source: str
    context: list[str]
    header: str = ""
    head: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    exceptions: list[list[str]] = field(default_factory=list)
    in_frames: bool = False
    is_entry: bool = False
    last_at: int = 0

    def add(self, raw: str) -> None:
        if len(self.head) < _HEAD_LINES:
            self.head.append(raw)
            return
        self.tail.append(raw)
        if len(self.tail) > _TAIL_LINES:
            del self.tail[0]

    @property
    def lines(self) -> list[str]:
        # What stood before tells more than one line of news does.
        return [*(self.context if not self.exceptions else []), *self.head, *self.tail]


def _header_of_next(block: _Block) -> str:
    """Take back what looked like an exception's message and was the first line of the record after it."""
    message = block.exceptions[-1]
    return message.pop() if block.level and len(message) > 1 else ""


class Tracebacks:
    """All errors of one log; `version` changes whenever the answer may have changed."""

    def __init__(self, rules: LogRules, tail: Iterable[str]) -> None:
        self._rules = rules
        self._tail = tail
        self._open: dict[str, _Block] = {}
        self._troubles: list[Trouble] = []
        self._is_terminal = False
        self._order = 0
        self._bare_depth = 0
        self._count = 0
        self._usage: list[str] = []
        self._next_header = ""
        self.is_stopping = False
        self.version = 0

    def take(self, line: Line, raw: str) -> bool:
        """Look at a line; True when it belongs to an error and says nothing of a stage."""
        self._count += 1
        block = self._open.get(line.process)
        if block is not None:
            if self._continues(block, line, raw):
                return True
            self._close(line.process, block)
        if line.level in _ERROR_LEVELS or line.text.startswith(_TRACEBACK) or line.text.endswith(_TRACEBACK):
            self._begin(line, raw)
            return True
        return self._take_bare(line, raw)

    def troubles(self) -> list[Trouble]:
        """Return the errors, root cause first: [] unless something terminal was seen."""
        finished = list(self._troubles)
        is_terminal = self._is_terminal
        for block in self._open.values():
            trouble = self._trouble_of(block)
            if trouble is not None:
                finished.append(trouble)
                is_terminal = is_terminal or self._ends_all(block)
        if not is_terminal or (self.is_stopping and not self._is_terminal):
            return []
        return sorted(finished, key=lambda trouble: (trouble.rank, -trouble.depth, trouble.order))

    def last_words(self) -> Trouble | None:
        """Return the traceback that stands at the log's very end, past the logger: an exception nobody caught."""
        bare = [trouble for trouble in self._troubles if trouble.is_bare]
        for block in self._open.values():
            trouble = self._trouble_of(block)
            if trouble is not None and trouble.is_bare:
                bare.append(trouble)
        last = max(bare, key=lambda trouble: trouble.order, default=None)
        is_near = last is not None and self._count - last.seen_at <= _LAST_WORDS_LINES
        return last if is_near and not self.is_stopping else None

    def _begin(self, line: Line, raw: str) -> None:
        self._order += 1
        self.version += 1
        if len(self._open) >= _MOST_PROCESSES:
            self._open.clear()
        depth = line.depth or self._bare_depth
        # Where only the first line has the prefix, the rest of the record comes without process and level.
        keeps_prefix = self._rules.repeats_prefix
        context = list(self._tail)[-_CONTEXT_LINES:-1]
        block = _Block(
            depth, self._order, line.level if keeps_prefix else "", line.source if keeps_prefix else "", context
        )
        block.add(raw)
        block.in_frames = line.text.endswith(_TRACEBACK)
        block.header = self._next_header if line.text.startswith(_TRACEBACK) else line.text.removesuffix(_TRACEBACK)
        self._next_header = ""
        if block.header:
            self._judge_message(line._replace(text=block.header))
        self._open[line.process if keeps_prefix else ""] = block

    def _continues(self, block: _Block, line: Line, raw: str) -> bool:
        """Add a line to an open error if it is part of it."""
        text = line.text
        if line.level != block.level or line.source != block.source:
            return False
        if text.startswith(_TRACEBACK):
            if block.exceptions and not block.in_frames and (block.level or not block.is_entry):
                self._next_header = _header_of_next(block)
                return False
            block.in_frames = True
        elif text.startswith(_CHAIN):
            block.in_frames = True
        elif block.in_frames:
            if text[:1] in " \t^|":
                if not block.is_entry and self._rules.entry_frame.search(text):
                    block.is_entry = True
            elif _EXCEPTION.match(text):
                block.in_frames = _TELLS_TRACEBACK.match(text) is not None
                del block.exceptions[_MOST_EXCEPTIONS - 1 :]
                block.exceptions.append([text])
                if text.startswith("KeyboardInterrupt") and not self._is_terminal:
                    self.is_stopping = True
        elif not self._continues_message(block, text):
            return False
        block.add(raw)
        block.last_at = self._count
        self.version += 1
        return True

    def _continues_message(self, block: _Block, text: str) -> bool:
        if not block.exceptions:
            # A logger's record of several lines repeats its prefix; without one a new line is a new thing.
            return False
        if len(block.exceptions[-1]) >= _MESSAGE_LINES or _NEW_THING.match(text) or _PROCESS_HEADER.match(text):
            return False
        block.exceptions[-1].append(text)
        return True

    def _close(self, process: str, block: _Block) -> None:
        del self._open[process]
        self.version += 1
        if not block.level:
            self._bare_depth = 0
        trouble = self._trouble_of(block)
        if trouble is None:
            return
        if self._ends_all(block) and not self.is_stopping:
            self._is_terminal = True
        self._keep(trouble)

    def _trouble_of(self, block: _Block) -> Trouble | None:
        if self._is_harmless(block):
            return None
        if block.exceptions and _ASKED_TO_END.match(block.exceptions[-1][0]):
            return None
        texts = ["\n".join(message) for message in block.exceptions]
        if block.header and not texts:
            texts = [block.header]
        if not texts:
            return None
        rank = ROOT
        if all(self._rules.generic.search(text) for text in texts):
            rank = POINTER
        elif self._rules.died.search(texts[0]):
            rank = DEATH
        elif not block.exceptions and not self._rules.native.search(texts[0]):
            # An error line without an exception proves nothing by itself.
            rank = POINTER
        is_bare = not block.level and bool(block.exceptions)
        return Trouble(block.depth, block.order, rank, texts, block.lines, is_bare, block.last_at)

    def _is_harmless(self, block: _Block) -> bool:
        """True for an error that concerns one request; an exception's own words as its header say no such thing."""
        header = block.header.strip()
        is_own_words = any(header and message[0].endswith(header) for message in block.exceptions)
        return self._rules.harmless.match(header) is not None and not is_own_words

    def _ends_all(self, block: _Block) -> bool:
        """True for an exception that nobody caught: the interpreter wrote it, from the program's first frame on.

        An engine or a worker is lost too when its memory or its device is, even if its process stays.
        """
        if not block.exceptions:
            return False
        if not block.level and block.is_entry:
            return True
        is_deep = block.depth >= ENGINE and not self._is_harmless(block)
        return is_deep and any(self._rules.fatal.search(message[0]) for message in block.exceptions)

    def _keep(self, trouble: Trouble) -> None:
        if len(self._troubles) >= _MOST_TROUBLES:
            worst = max(self._troubles, key=lambda kept: (kept.rank, -kept.depth, kept.order))
            if (worst.rank, -worst.depth) <= (trouble.rank, -trouble.depth):
                return
            self._troubles.remove(worst)
        self._troubles.append(trouble)

    def _judge_message(self, line: Line) -> None:
        """Notice a line that ends all, or a stop that was asked for."""
        if self._rules.stop.match(line.text):
            deep = any(trouble.rank == ROOT and trouble.depth >= ENGINE for trouble in self._troubles)
            if not self._is_terminal and not deep:
                self.is_stopping = True
        elif not self.is_stopping and self._rules.terminal.search(line.text[:_OWN_WORDS]):
            self._is_terminal = True
            self.version += 1

    def _take_bare(self, line: Line, raw: str) -> bool:
        """Look at a line outside of any traceback: terminal texts, usage errors, native aborts, process headers."""
        text = line.text
        if not line.level:
            header = _PROCESS_HEADER.match(text)
            if header is not None:
                name = header["name"]
                self._bare_depth = WORKER if "Worker" in name else ENGINE if name.startswith("EngineCore") else 0
                return True
            if text.startswith("usage: "):
                self._usage = [raw]
                return True
            if self._usage:
                return self._take_usage(text, raw)
        if line.level not in _QUOTING_LEVELS and self._rules.terminal.search(text[:_OWN_WORDS]):
            return self._alone(line, raw)
        if self._rules.stop.match(text):
            self._judge_message(line)
        elif not line.level and self._rules.native.search(text[:_OWN_WORDS]):
            self._order += 1
            self.version += 1
            self._keep(Trouble(line.depth, self._order, ROOT, [text], [raw]))
        return False

    def _alone(self, line: Line, raw: str) -> bool:
        if self.is_stopping:
            return False
        self._order += 1
        self.version += 1
        self._is_terminal = True
        rank = DEATH if self._rules.died.search(line.text) else ROOT
        if self._rules.generic.search(line.text):
            rank = POINTER
        self._keep(Trouble(line.depth, self._order, rank, [line.text], list(self._tail)[-_CONTEXT_LINES:]))
        return True

    def _take_usage(self, text: str, raw: str) -> bool:
        """Read argparse's words: usage lines, then `program: error: ...`, which ends the program with status 2."""
        self._usage.append(raw)
        if ": error: " in text and not text.startswith(" "):
            self._order += 1
            self.version += 1
            self._is_terminal = True
            self._keep(Trouble(0, self._order, ROOT, [text], self._usage[-_TAIL_LINES:]))
            self._usage = []
        elif not text.startswith((" ", "usage:")) or len(self._usage) > 2000:
            self._usage = []
            return False
        return True
