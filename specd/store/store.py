"""The store: moves, events, facts, measurements and logs. Called from the event loop's thread only; one writer.

A commit is synced before the call returns (WAL, synchronous=FULL), so what was returned is durable.
"""

import dataclasses
import itertools
import json
import secrets
import sqlite3
import statistics
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from specd import clock
from specd.bench.plan import LevelDone
from specd.engines.engine import Failure
from specd.errors import NotFound, StoreError
from specd.services.service import JournalRecord
from specd.settings import TrialSpec
from specd.store.database import Database
from specd.store.rows import LogLine, MeasuredLevel, TrialRow, level_from_text, level_to_json, trial_from_row
from states.events import Event
from states.table import TERMINAL, Outcome, State, Trigger
from states.wire import encode

__all__ = ["Store"]

_T = TypeVar("_T")

_ALPHABET = "abcdefghjkmnpqrstvwxyz23456789"
# What is expected of a service's next trial comes from these: its latest real ones, so few that a look stays cheap.
_RECENT = (
    "SELECT id FROM trial WHERE service = ? AND json_extract(spec, '$.rehearsal') = 0 ORDER BY created_at DESC LIMIT 50"
)
_TRIAL_COLUMNS = "id, name, service, host, spec, created_at, updated_at, state, outcome, reason, failure"


class Store:
    """The database at `path`; raises StoreError when it can't be opened, read or written, and with a `problem` always
    when it should be written."""

    def __init__(self, path: Path, problem: str = "") -> None:
        self.database = self._db = Database(path, problem)
        known = "SELECT value FROM meta WHERE key = 'installation'"
        found = self._db.one(known)
        # A later start writes nothing, so that it needs to wait for nobody.
        if found is None and not problem:
            with self._db.write("meta") as db:
                db.execute("INSERT OR IGNORE INTO meta VALUES ('installation', ?)", (uuid.uuid4().hex,))
            found = self._db.one(known)
        self.installation = str(found[0]) if found else "unknown"

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _sense(self, what: str, read: Callable[[Any], _T], stored: Any) -> _T:
        """Read what was stored; what makes no sense was not written by us, so the file is trusted no longer."""
        try:
            return read(stored)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._db.harmed(f"{what} in it makes no sense: {error!r}"[:300]) from error

    # -- trials and moves

    def add_trials(self, specs: Sequence[tuple[TrialSpec, str]], key: str = "") -> list[TrialRow]:
        """Queue trials, each with its host's name, in one commit; the same idempotency `key` gives the same trials
        again."""
        if key and (known := self.submission(key)) is not None:
            return known
        with self._db.write("trials") as db:
            ids = []
            for spec, host in specs:
                at = clock.now()
                ids.append(self._fresh_id())
                row = (ids[-1], spec.name, spec.service, host, _json(spec), at, at, State.QUEUED.value, None, "", None)
                db.execute(f"INSERT INTO trial ({_TRIAL_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)", row)
            if key:
                db.execute("INSERT INTO submission VALUES (?, ?, ?)", (key, json.dumps(ids), clock.now()))
        return [self.trial(trial) for trial in ids]

    def submission(self, key: str) -> list[TrialRow] | None:
        """Return the trials queued under an idempotency key; None for a key not used yet."""
        found = self._db.one("SELECT trials FROM submission WHERE key = ?", (key,))
        return [self.trial(trial) for trial in self._sense("a submission", json.loads, found[0])] if found else None

    def _fresh_id(self) -> str:
        """Return an id that no trial has; short ones meet by chance after some thousand trials of a day."""
        stamp = datetime.now(UTC).strftime("%y%m%d")
        while True:
            trial = f"{stamp}-{''.join(secrets.choice(_ALPHABET) for _ in range(5))}"
            if self._db.one("SELECT 1 FROM trial WHERE id = ?", (trial,)) is None:
                return trial

    def move(
        self,
        trial: str,
        source: State,
        trigger: Trigger,
        target: State,
        *,
        event: Event,
        cause: str = "",
        outcome: Outcome | None = None,
        failure: Failure | None = None,
    ) -> Event:
        """Make one move durable together with its event; the first outcome with a reason stays. Returns the stored
        event."""
        at = clock.now()
        with self._db.write(f"move {target.value}") as db:
            (state,) = db.execute("SELECT state FROM trial WHERE id = ?", (trial,)).fetchone()
            if state != source.value:
                raise StoreError(f"trial {trial} is in {state}, not in {source.value}")
            db.execute(
                "INSERT INTO move SELECT ?, COALESCE(MAX(seq), 0) + 1, ?, ?, ?, ?, ? FROM move WHERE trial = ?",
                (trial, source.value, trigger.value, target.value, cause, at, trial),
            )
            db.execute("UPDATE trial SET state = ?, updated_at = ? WHERE id = ?", (target.value, at, trial))
            if outcome is not None:
                db.execute(
                    "UPDATE trial SET outcome = ?, reason = ?, failure = ? WHERE id = ?",
                    (outcome.value, cause, failure and _json(failure), trial),
                )
            return self._append(db, event, at)

    def trial(self, trial: str) -> TrialRow:
        """Return one trial by id; raises NotFound."""
        found = self._db.one(f"SELECT {_TRIAL_COLUMNS} FROM trial WHERE id = ?", (trial,))
        if found is None:
            raise NotFound(f"no trial {trial!r}", next_step="`specd trials` lists them")
        return self._sense(f"trial {trial}", trial_from_row, found)

    def find_trial(self, word: str) -> TrialRow:
        """Return a trial by id, by a unique part of its id, or by its name (the latest one); raises NotFound."""
        rows = self._db.all("SELECT id FROM trial WHERE id = ?1 OR substr(id, 8) = ?1", (word,))
        if len(rows) != 1 and len(word) >= 3:
            pattern = word.replace("%", "").replace("_", "")
            rows = self._db.all(
                "SELECT id FROM trial WHERE id LIKE ?1 || '%' OR substr(id, 8) LIKE ?1 || '%'", (pattern,)
            )
        if len(rows) != 1:
            rows = self._db.all(
                "SELECT id FROM trial WHERE name = ? ORDER BY created_at DESC, rowid DESC LIMIT 1", (word,)
            )
        if len(rows) != 1:
            raise NotFound(f"no trial {word!r}", next_step="`specd trials` lists them")
        return self.trial(rows[0][0])

    def trials(self, limit: int = 200, before: str = "") -> list[TrialRow]:
        """Return the latest trials, newest first; with `before`, those that come after this one in the whole list.

        A row that makes no sense is left out. Raises NotFound.
        """
        where = "WHERE (created_at, rowid) < (?, ?)" if before else ""
        query = f"SELECT {_TRIAL_COLUMNS} FROM trial {where} ORDER BY created_at DESC, rowid DESC LIMIT ?"
        found = []
        for row in self._db.all(query, (*(self._position(before) if before else ()), limit)):
            with suppress(StoreError):
                found.append(self._sense(f"trial {row[0]}", trial_from_row, row))
        return found

    def _position(self, trial: str) -> tuple[str, int]:
        found = self._db.one("SELECT created_at, rowid FROM trial WHERE id = ?", (trial,))
        if found is None:
            raise NotFound(f"no trial {trial!r}", next_step="`specd trials` lists them")
        return found[0], found[1]

    def open_trials(self) -> list[TrialRow]:
        """Return every trial that is neither settled nor withdrawn, oldest first; parked ones included."""
        unsettled = [state.value for state in State if state not in TERMINAL]
        query = f"SELECT {_TRIAL_COLUMNS} FROM trial WHERE state IN ({','.join('?' * len(unsettled))})"
        rows = self._db.all(query + " ORDER BY created_at, rowid", unsettled)
        return [self._sense(f"trial {row[0]}", trial_from_row, row) for row in rows]

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many trials there are of each state and outcome ("" for none yet)."""
        query = "SELECT state, COALESCE(outcome, ''), COUNT(*) FROM trial GROUP BY 1, 2"
        return {(state, outcome): count for state, outcome, count in self._db.all(query)}

    def holding(self, service: str) -> TrialRow | None:
        """Return the trial that a service's rollback concerns: an open one past the queue, a parked or a kept one."""
        query = (
            f"SELECT {_TRIAL_COLUMNS} FROM trial WHERE service = ? AND state NOT IN (?, ?, ?) ORDER BY created_at DESC"
        )
        gone = (State.QUEUED.value, State.RESTORED.value, State.WITHDRAWN.value)
        found = self._db.one(query, (service, *gone))
        return self._sense(f"trial {found[0]}", trial_from_row, found) if found else None

    def moves(self, trial: str) -> list[dict[str, str]]:
        """Return a trial's moves in order: source, trigger, target, cause, at."""
        names = ("source", "trigger", "target", "cause", "at")
        query = "SELECT source, trigger, target, cause, at FROM move WHERE trial = ? ORDER BY seq"
        return [dict(zip(names, row, strict=True)) for row in self._db.all(query, (trial,))]

    def timed_moves(self, trial: str) -> list[dict[str, Any]]:
        """Return `{source, took_s}` of each of a trial's moves whose source state was entered by a move."""
        moves = self.moves(trial)
        return [
            {"source": move["source"], "took_s": clock.seconds_between(before["at"], move["at"])}
            for before, move in itertools.pairwise(moves)
        ]

    def durations(self, service: str, last: int = 5) -> dict[State, list[float]]:
        """Return how many seconds each state took in the service's recent trials that got through it, newest first."""
        query = f"""
            SELECT m.source, m.at, (SELECT p.at FROM move p WHERE p.trial = m.trial AND p.seq = m.seq - 1)
            FROM move m WHERE m.trial IN ({_RECENT}) AND m.seq > 1
            AND m.trigger NOT IN ('failed', 'timed-out', 'cancel', 'rollback',
            'guard-fired')
            ORDER BY m.at DESC LIMIT 200"""
        found: dict[State, list[float]] = {}
        for source, at, before in self._db.all(query, (service,)):
            seconds = found.setdefault(State(source), [])
            if len(seconds) < last:
                seconds.append(clock.seconds_between(before, at))
        return found

    def stage_durations(self, service: str, last: int = 5) -> dict[str, float]:
        """Return the median seconds of each start-up stage over the service's last starts that came up."""
        query = f"""
            SELECT value FROM fact WHERE trial IN ({_RECENT}) AND key = 'start.took' ORDER BY at DESC LIMIT ?"""
        found: dict[str, list[float]] = {}
        for (body,) in self._db.all(query, (service, last)):
            for stage, seconds in self._sense("a fact", json.loads, body).items():
                found.setdefault(stage, []).append(seconds)
        return {stage: statistics.median(seconds) for stage, seconds in found.items()}

    # -- events

    def append(self, event: Event) -> Event:
        """Store an event and return it with its seq and time."""
        with self._db.write(f"event {type(event).__name__}") as db:
            return self._append(db, event, clock.now())

    def _append(self, db: sqlite3.Connection, event: Event, at: str) -> Event:
        stamped = dataclasses.replace(event, at=event.at or at)
        cursor = db.execute(
            "INSERT INTO event (at, trial, service, body) VALUES (?, ?, ?, ?)",
            (stamped.at, stamped.trial, stamped.service, json.dumps(encode(stamped))),
        )
        return dataclasses.replace(stamped, seq=cursor.lastrowid or 0)

    def events(self, since: int = 0, limit: int = 1000, trial: str | None = None) -> list[dict[str, Any]]:
        """Return stored events after `since` in wire form, oldest first."""
        query = "SELECT seq, body FROM event WHERE seq > ?1 AND (?2 IS NULL OR trial = ?2) ORDER BY seq LIMIT ?3"
        rows = self._db.all(query, (since, trial, limit))
        return [{**self._sense(f"event {seq}", json.loads, body), "seq": seq} for seq, body in rows]

    def last_seq(self) -> int:
        """Return the seq of the newest event; 0 before any."""
        return self._db.number("SELECT COALESCE(MAX(seq), 0) FROM event")

    # -- facts and artefacts

    def put_fact(self, trial: str, key: str, value: Any) -> None:
        """Store a checkpoint of a trial as JSON, replacing an earlier one."""
        with self._db.write(f"fact {key}") as db:
            db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?, ?, ?)", (trial, key, json.dumps(value), clock.now()))

    def fact(self, trial: str, key: str) -> Any:
        """Return a checkpoint's value, None when there is none."""
        found = self._db.one("SELECT value FROM fact WHERE trial = ? AND key = ?", (trial, key))
        return self._sense(f"the fact {key} of trial {trial}", json.loads, found[0]) if found else None

    def put_artefact(self, trial: str, name: str, body: str) -> None:
        """Store a text that belongs to a trial (unit, diff, journal window), masked by the caller."""
        with self._db.write(f"artefact {name}") as db:
            db.execute("INSERT OR REPLACE INTO artefact VALUES (?, ?, ?, ?)", (trial, name, clock.now(), body))

    def artefacts(self, trial: str) -> Mapping[str, str]:
        """Return a trial's artefacts by name."""
        return dict(self._db.all("SELECT name, body FROM artefact WHERE trial = ?", (trial,)))

    # -- measurements

    def add_level(self, trial: TrialRow, side: str, invocation: str, digest: str, done: LevelDone) -> None:
        """Store a finished level; a level of the same invocation and plan that is already there stays."""
        values = (trial.id, trial.service, side, invocation, digest, *done.level.load, done.level.repeat)
        with self._db.write(f"level {side}") as db:
            db.execute(
                "INSERT OR IGNORE INTO level (trial, service, side, invocation, digest, concurrency, rate, repeat, at,"
                " body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, clock.now(), json.dumps(level_to_json(done))),
            )

    def levels(self, trial: str, side: str, invocation: str, digest: str) -> list[MeasuredLevel]:
        """Return the finished levels of one side of one trial on one invocation under one plan."""
        query = "trial = ? AND side = ? AND invocation = ? AND digest = ?"
        return self._levels(query, (trial, side, invocation, digest))

    def baseline_levels(self, service: str, invocation: str, digest: str) -> list[MeasuredLevel]:
        """Return the baseline levels that any trial of the service measured on this invocation under this plan."""
        query = "service = ? AND side = 'baseline' AND invocation = ? AND digest = ?"
        return self._levels(query, (service, invocation, digest))

    def trial_levels(self, trial: str, service: str, baseline: str) -> dict[str, list[MeasuredLevel]]:
        """Return what a trial compared: its candidate's levels, and under the same plan those of its baseline's
        invocation."""
        rows = self._db.all("SELECT digest FROM level WHERE trial = ? ORDER BY id DESC LIMIT 1", (trial,))
        if not rows:
            return {"baseline": [], "candidate": []}
        (digest,) = rows[0]
        return {
            "baseline": self.baseline_levels(service, baseline, digest),
            "candidate": self._levels("trial = ? AND side = 'candidate' AND digest = ?", (trial, digest)),
        }

    def _levels(self, where: str, values: tuple[str, ...]) -> list[MeasuredLevel]:
        rows = self._db.all(f"SELECT side, invocation, at, body FROM level WHERE {where} ORDER BY id", values)
        return [
            MeasuredLevel(side=side, invocation=invocation, at=at, done=self._sense("a level", level_from_text, body))
            for side, invocation, at, body in rows
        ]

    # -- logs

    def add_log(self, trial: str, unit: str, invocation: str, records: Sequence[JournalRecord]) -> None:
        """Store journal records in order, in one commit; raises StoreError also while they would take the room that
        moves need."""
        if self._db.is_short:
            raise StoreError("the disk is full; log lines wait")
        with self._db.write("log") as db:
            (n,) = db.execute("SELECT COALESCE(MAX(n), 0) FROM log WHERE trial = ?", (trial,)).fetchone()
            db.executemany(
                "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (trial, n + i, record.at, unit, invocation, record.pid, record.cursor, record.text)
                    for i, record in enumerate(records, start=1)
                ],
            )

    def log(self, trial: str, after: int = 0, limit: int = 1000, invocation: str | None = None) -> list[LogLine]:
        """Return stored log lines after number `after`; a negative `after` means that many from the end."""
        if after < 0:
            n = self._db.number("SELECT COALESCE(MAX(n), 0) FROM log WHERE trial = ?", (trial,))
            after = max(0, n + after)
        query = (
            "SELECT n, at, unit, pid, text FROM log WHERE trial = ?1 AND n > ?2 AND (?3 IS NULL OR invocation = ?3)"
            " ORDER BY n LIMIT ?4"
        )
        return [LogLine(*row) for row in self._db.all(query, (trial, after, invocation, limit))]

    def log_records(self, trial: str, invocation: str) -> list[JournalRecord]:
        """Return the stored records of an invocation, oldest first, to take a watch up where it was."""
        query = "SELECT cursor, at, pid, text FROM log WHERE trial = ? AND invocation = ? ORDER BY n"
        rows = self._db.all(query, (trial, invocation))
        return [JournalRecord(cursor=cursor, at=at, pid=pid, text=text) for cursor, at, pid, text in rows]


def _json(record: Any) -> str:
    return json.dumps(dataclasses.asdict(record))
