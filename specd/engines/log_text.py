"""Turning journal records into clean lines: carriage returns, ANSI sequences, vLLM's and SGLang's line prefixes."""

import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = [
    "Line",
    "LineParser",
    "clean_lines",
    "parse_plain_line",
    "parse_sglang_line",
    "parse_vllm_line",
    "printable",
    "split_message",
]

# One line can hold an engine's whole configuration; nothing that is matched stands further in than this.
LONGEST_LINE = 16384

API, ENGINE, WORKER = 1, 2, 3

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BREAK = re.compile(r"[\r\n]+")
# `docker compose` puts the container's name in front, `docker logs -t` the time, Ray a worker's address behind its pid,
# torch its rank.
_VLLM = re.compile(
    r"(?:[\w.-]+ +\| )?(?:\d{4}-\d\d-\d\dT[\d:.]+Z ?)?"
    r"(?:\((?P<process>[A-Za-z][\w.-]*)(?: rank=\d+)? pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? "
    r"\[?(?P<source>[\w./-]+:\d+)\] ?)?"
    r"(?:\[rank\d+\]: ?)?"
)
_SGLANG = re.compile(
    r"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,\d]*(?: (?P<process>[A-Z]+\d+(?: [A-Z]+\d+)*))?\] ?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):? +)?"
)


class Line(NamedTuple):
    """One clean line: who wrote it (`depth`: 1 API server, 2 engine, 3 worker, 0 not told), its level and text.

    `level` is "" for text that went past the logger (bars, tracebacks of the interpreter, libraries); `source` is the
    place in the engine's code that logged it, "" where the format does not tell.
    """

    process: str
    depth: int
    level: str
    text: str
    source: str = ""


LineParser = Callable[[str], Line]


def clean_lines(record: str) -> Iterator[str]:
    """Split a record at newlines and carriage returns, without ANSI sequences and empty pieces."""
    if "\x1b" in record:
        record = _ANSI.sub("", record)
    pieces = _BREAK.split(record) if "\r" in record or "\n" in record else (record,)
    for piece in pieces:
        stripped = piece.rstrip()
        if stripped:
            yield stripped[:LONGEST_LINE]


def printable(text: str) -> str:
    """Return text without control characters, for showing."""
    return _CONTROL.sub("", _ANSI.sub("", text))


def split_message(line: Line) -> Iterator[Line]:
    """Yield a line for each line of a message that holds several (the JSON form)."""
    if "\n" not in line.text:
        yield line
        return
    for text in line.text.splitlines():
        if text:
            yield line._replace(text=text)


def parse_vllm_line(text: str) -> Line:
    """Read vLLM's prefixes of 0.6 to 0.33, or its JSON form."""
    if text.startswith('{"') and text.endswith("}"):
        return _json_line(text)
    found = _VLLM.match(text)
    if found is None or not found.end():
        return Line("", 0, "", text)
    name = found["process"] or ""
    process = f"{name} pid={found['pid']} {found['ip'] or ''}".rstrip() if name else ""
    return Line(process, _vllm_depth(name), found["level"] or "", text[found.end() :], found["source"] or "")


def _json_line(text: str) -> Line:
    try:
        fields = json.loads(text)
    except json.JSONDecodeError:
        return Line("", 0, "", text)
    if not isinstance(fields, dict) or not isinstance(fields.get("message"), str):
        return Line("", 0, "", text)
    name = str(fields.get("processName", ""))
    return Line(
        f"{name} pid={fields.get('process', '')}" if name else "",
        _vllm_depth(name),
        str(fields.get("levelname", "")),
        fields["message"],
        str(fields.get("name", "")),
    )


def _vllm_depth(name: str) -> int:
    if not name:
        return 0
    if "Worker" in name:
        return WORKER
    return ENGINE if name.startswith(("EngineCore", "DPEngineCore", "Engine_")) else API


def parse_sglang_line(text: str) -> Line:
    """Read SGLang's prefix: time, and the ranks of a scheduler process (the only ones that carry any)."""
    found = _SGLANG.match(text)
    if found is None:
        return Line("", 0, "", text)
    process = found["process"] or ""
    return Line(process, WORKER if process else API, found["level"] or "", text[found.end() :])


def parse_plain_line(text: str) -> Line:
    """Take a line as it is (llama.cpp)."""
    return Line("", 0, "", text)
