"""The journal of one invocation: journalctl's JSON to records, long lines joined again."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from specd.errors import BadAnswer
from specd.services.service import JournalRecord
from specd.services.systemd.scope import Scope

__all__ = ["Journal", "LineJoiner", "decode_record"]

# These see the whole journal; other users see only what they wrote themselves.
READER_GROUPS = frozenset({"root", "systemd-journal", "adm", "wheel"})
_FIELDS = "MESSAGE,_PID,_STREAM_ID,_LINE_BREAK,UNIT,USER_UNIT"
# A program that never ends its line must not fill the memory: what has come is given out in parts of this size.
_LONGEST_JOIN = 1024 * 1024


class Journal:
    """Reads the journal of a host for the units of one scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._needs_privilege: bool | None = None

    async def needs_privilege(self) -> bool:
        """Whether the connecting user sees a system unit's records only with privileges."""
        if self._scope.is_user:
            return False
        if self._needs_privilege is None:
            groups = (await self._scope.host.run(["id", "-Gn"])).text.split()
            self._needs_privilege = not READER_GROUPS & set(groups)
        return self._needs_privilege

    def follow(
        self, unit: str, invocation: str, after: str
    ) -> AbstractAsyncContextManager[AsyncIterator[JournalRecord]]:
        """Follow one invocation's records from its start, or after a cursor."""
        return self._follow(unit, invocation, after)

    @contextlib.asynccontextmanager
    async def _follow(self, unit: str, invocation: str, after: str) -> AsyncIterator[AsyncIterator[JournalRecord]]:
        start = [f"--after-cursor={after}"] if after else []
        argv = ["journalctl", "--follow", "--no-tail", *start, *self._selection(unit, invocation)]
        async with self._scope.host.follow(argv, privileged=await self.needs_privilege()) as lines:
            yield _records(lines)

    async def history(self, unit: str, invocation: str, last: int) -> list[JournalRecord]:
        """Return the newest `last` records of one invocation, oldest first."""
        argv = ["journalctl", f"--lines={last}", *self._selection(unit, invocation)]
        done = await self._scope.host.run(argv, privileged=await self.needs_privilege(), timeout_s=120.0)
        joiner = LineJoiner()
        found = [record for line in done.stdout.split(b"\n") for record in joiner.feed(line)]
        return [*found, *joiner.rest()]

    def _selection(self, unit: str, invocation: str) -> list[str]:
        """Return the options that choose what the unit's processes wrote, and what the manager said about it."""
        prefix = "USER_" if self._scope.is_user else ""
        return [
            "--quiet",
            "--no-pager",
            "--all",
            "--output=json",
            f"--output-fields={_FIELDS}",
            f"_SYSTEMD_INVOCATION_ID={invocation}",
            "+",
            f"{prefix}INVOCATION_ID={invocation}",
            f"{prefix}UNIT={unit}",
        ]


async def _records(lines: AsyncIterator[bytes]) -> AsyncIterator[JournalRecord]:
    joiner = LineJoiner()
    async for line in lines:
        for record in joiner.feed(line):
            yield record


class LineJoiner:
    """Joins the parts into which journald splits a long line, each stream's by itself.

    A line of exactly journald's limit can't be told from the first part of a longer one; it gets the next line joined.
    A part that holds carriage returns is a progress bar: what stands before the last one is given out at once.
    """

    def __init__(self) -> None:
        self._held: dict[str, list[str]] = {}
        self._last: dict[str, JournalRecord] = {}

    def feed(self, line: bytes) -> Iterator[JournalRecord]:
        """Take one line of journalctl's output and return the records that are whole now."""
        if not line.strip():
            return
        fields = _fields(line)
        record = decode_record(fields)
        stream = _text(fields.get("_STREAM_ID"))
        parts = self._held.pop(stream, []) if stream else []
        parts.append(record.text)
        if stream and _text(fields.get("_LINE_BREAK")) == "line-max":
            yield from self._hold(stream, replace(record, text="".join(parts)))
        else:
            self._last.pop(stream, None)
            yield replace(record, text="".join(parts))

    def _hold(self, stream: str, record: JournalRecord) -> Iterator[JournalRecord]:
        shown, _, rest = record.text.rpartition("\r")
        if not shown and len(rest) > _LONGEST_JOIN:
            shown, rest = rest, ""
        self._held[stream] = [rest]
        self._last[stream] = record
        if shown:
            yield replace(record, text=shown)

    def rest(self) -> list[JournalRecord]:
        """Return what is still held, when no more will come."""
        held = [
            replace(self._last[stream], text=text) for stream, parts in self._held.items() if (text := "".join(parts))
        ]
        self._held.clear()
        self._last.clear()
        return held


def decode_record(fields: dict[str, Any]) -> JournalRecord:
    """Turn one JSON object of journalctl into a record."""
    try:
        at = int(fields["__REALTIME_TIMESTAMP"]) / 1e6
        cursor = str(fields["__CURSOR"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadAnswer("journalctl printed a record without time or cursor") from error
    pid = _text(fields.get("_PID"))
    return JournalRecord(
        cursor=cursor,
        at=at,
        pid=int(pid) if pid.isdigit() else 0,
        text=_text(fields.get("MESSAGE")),
        from_manager="UNIT" in fields or "USER_UNIT" in fields,
    )


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise BadAnswer(f"journalctl printed no JSON: {line[:200]!r}") from error
    if not isinstance(fields, dict):
        raise BadAnswer(f"journalctl printed no JSON object: {line[:200]!r}")
    return fields


def _text(value: Any) -> str:
    """Decode a field: text, a list of byte values, null (not shown), or a list of these when the field is repeated."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if all(isinstance(item, int) for item in value):
            return _bytes(value).decode(errors="replace")
        return "\n".join(_text(item) for item in value)
    return str(value)


def _bytes(values: Iterable[int]) -> bytes:
    return bytes(value & 0xFF for value in values)
