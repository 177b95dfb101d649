"""What the API can do, without HTTP: each operation takes and gives plain JSON-ready values and raises SpecdError."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

from specd import __version__, clock
from specd.api.views import brief, serving, whole
from specd.bench.plan import LevelDone
from specd.bus import Bus
from specd.config import Paths, parse_trials
from specd.deadline import Deadline
from specd.errors import Degraded, Refused, StoreError, UsageError
from specd.fleet import Fleet
from specd.phases import Context
from specd.phases.guard import guard_json
from specd.planning import expected_outage_s, plan_trial
from specd.preflight import check_fleet
from specd.scheduler import Scheduler
from specd.services.service import Claim
from specd.settings import Config, Policy, TrialSpec
from specd.store import Store, TrialRow
from states.table import PARKED, State

__all__ = ["Application"]


class Application:
    """The daemon as its clients see it."""

    def __init__(
        self, config: Config, paths: Paths, store: Store, bus: Bus, fleet: Fleet, scheduler: Scheduler
    ) -> None:
        self.config = config
        self.paths = paths
        self.store = store
        self.bus = bus
        self.fleet = fleet
        self.scheduler = scheduler
        self.started_at = clock.now()
        self._started = time.monotonic()
        self._seq = 0

    def health(self) -> dict[str, Any]:
        """Return who answers here; that does not depend on whether the database can be read."""
        with contextlib.suppress(StoreError):
            self._seq = self.store.last_seq()
        return {
            "state": "degraded" if self._problem() else "ok",
            "problem": self._problem(),
            "version": __version__,
            "pid": os.getpid(),
            "started_at": self.started_at,
            "seq": self._seq,
            "state_dir": str(self.paths.state_dir),
        }

    def _problem(self) -> str | None:
        """Say why new work is refused; None while it is not."""
        database = self.store.database
        return database.problem or (self._short_words() if database.is_short else None)

    def _short_words(self) -> str:
        return f"the disk of {self.paths.state_dir} is full: open trials go on, new ones wait until there is room"

    def _must_be_writable(self) -> None:
        """Raise Degraded while the database is only read."""
        if problem := self.store.database.problem:
            raise Degraded(problem)

    # -- trials

    def _specs(self, file: str, text: str, rehearsal: bool) -> list[TrialSpec]:
        specs = parse_trials(text, file or "trials.toml", self.config)
        return [dataclasses.replace(spec, rehearsal=True) for spec in specs] if rehearsal else specs

    def submit(self, file: str, text: str, rehearsal: bool, key: str) -> dict[str, Any]:
        """Queue the trials of a file, all or none; raises ConfigError, Refused for a service that needs a person."""
        if key and (known := self.store.submission(key)) is not None:
            return {"trials": [brief(row, self.scheduler.find(row.id)) for row in known]}
        specs = self._specs(file, text, rehearsal)
        self._must_be_writable()
        if self.store.database.is_short:
            raise Degraded(self._short_words(), next_step="make room there, then submit again")
        for service in {spec.service for spec in specs}:
            held = self.store.holding(service)
            if held is not None and held.state in PARKED:
                raise Refused(
                    f"{service} needs a person: the rollback of trial {held.id} failed",
                    next_step=f"see `specd show {held.id}`, then `specd rollback {service}`",
                )
        rows = self.store.add_trials([(spec, self.config.services[spec.service].host) for spec in specs], key)
        self.scheduler.submitted(rows)
        return {"trials": [brief(row, None) for row in rows]}

    async def plan(self, file: str, text: str, rehearsal: bool) -> dict[str, Any]:
        """Return the plan of each trial of a file."""
        specs = self._specs(file, text, rehearsal)
        return {"plans": [await plan_trial(spec, self._planning_context, self.store) for spec in specs]}

    def _planning_context(self, spec: TrialSpec) -> Context:
        row = TrialRow(
            id="plan",
            name=spec.name,
            service=spec.service,
            host=self.config.services[spec.service].host,
            spec=spec,
            created_at=clock.now(),
            updated_at=clock.now(),
            state=State.QUEUED,
            outcome=None,
            reason="",
            failure=None,
        )
        make: Callable[..., Context] = self.scheduler.context(row)
        return make(Deadline(self.config.services[spec.service].deadlines.verify_s), lambda: State.VERIFY)

    def trials(self, limit: int, before: str) -> dict[str, Any]:
        """Return the latest trials, newest first, or those after the trial `before`; and what is wrong with us."""
        found = [brief(row, self.scheduler.find(row.id)) for row in self.store.trials(limit, before)]
        return {"trials": found, "problem": self._problem()}

    def trial(self, word: str) -> dict[str, Any]:
        """Return one trial, whole."""
        row = self.store.find_trial(word)
        return whole(row, self.scheduler.find(row.id), self.store, self._unit(row.service))

    def artefacts(self, word: str) -> dict[str, Any]:
        """Return a trial's texts: units and diff."""
        return {"artefacts": dict(self.store.artefacts(self.store.find_trial(word).id))}

    def levels(self, word: str) -> dict[str, Any]:
        """Return what was measured, request by request, and the policy that judges it."""
        row = self.store.find_trial(word)
        known = self.store.fact(row.id, "baseline") or {}
        found = self.store.trial_levels(row.id, row.service, str(known.get("invocation")))
        service = self.config.services.get(row.service)
        return {
            **{side: [_without_pages(measured.done) for measured in levels] for side, levels in found.items()},
            "policy": dataclasses.asdict(service.policy if service else Policy()),
        }

    def log(self, word: str, after: int, limit: int) -> dict[str, Any]:
        """Return stored journal lines of a trial's units."""
        lines = self.store.log(self.store.find_trial(word).id, after, limit)
        return {
            "lines": [
                {"n": line.n, "at": line.at, "unit": line.unit, "pid": line.pid, "text": line.text} for line in lines
            ]
        }

    def cancel(self, word: str, by: str, why: str) -> dict[str, Any]:
        """End a trial."""
        self._must_be_writable()
        row = self.store.find_trial(word)
        self.scheduler.cancel(row, by, why)
        return brief(self.store.trial(row.id), self.scheduler.find(row.id))

    def extend(self, word: str, minutes: float) -> dict[str, Any]:
        """Give the running state of a trial more time."""
        if not 0 < minutes <= 7 * 24 * 60:
            raise UsageError(f"minutes must lie between 0 and a week, not {minutes:g}")
        self._must_be_writable()
        row = self.store.find_trial(word)
        run = self.scheduler.find(row.id)
        if run is None:
            raise Refused(f"trial {row.id} is in {row.state.value}; no state of it is running")
        run.extend(minutes)
        return {**brief(row, run), "deadline_at": run.ctx.deadline.at}

    # -- services and hosts

    def _unit(self, service: str) -> str:
        found = self.config.services.get(service)
        return found.unit if found else "of a service that is no longer configured"

    def services(self) -> dict[str, Any]:
        """Return each service with what holds it and what serves."""
        answer = []
        for service in self.config.services.values():
            held = self.store.holding(service.name)
            host = self.fleet.host(service.host)
            guard = self.store.fact(held.id, "guard") if held else None
            contact = host.link.last_contact
            answer.append(
                {
                    "name": service.name,
                    "host": service.host,
                    "unit": service.unit,
                    "serving": serving(held, service.unit) if held else f"the baseline {service.unit}",
                    "trial": held.id if held else None,
                    "state": held.state.value if held else None,
                    "guard": guard_json(guard),
                    "expected_outage_s": expected_outage_s(self.store, service.name),
                    "link": {
                        "connected": host.link.connected,
                        "since_contact_s": time.monotonic() - contact if contact is not None else None,
                        "why_down": host.link.why_down,
                    },
                }
            )
        return {"services": answer}

    def rollback(self, service: str, by: str) -> dict[str, Any]:
        """Bring a service's baseline back."""
        self._must_be_writable()
        trial = self.scheduler.rollback(service, by)
        return brief(self.store.trial(trial), self.scheduler.find(trial))

    async def claim(self, service: str) -> dict[str, Any]:
        """Return who drives a service, as its host has it."""
        return {"claim": self._claim_json(await self.scheduler.claim_on(service))}

    async def take_over(self, service: str, by: str) -> dict[str, Any]:
        """Take another daemon's claim on a service."""
        self._must_be_writable()
        return {"taken_from": self._claim_json(await self.scheduler.take_over(service, by))}

    def _claim_json(self, claim: Claim | None) -> dict[str, Any] | None:
        if claim is None:
            return None
        ours = claim.installation == self.store.installation
        return {**dataclasses.asdict(claim), "is_stale": claim.is_stale, "is_ours": ours, "words": claim.words}

    async def check(self) -> dict[str, Any]:
        """Run the preflight of every host and service."""
        return await check_fleet(self.fleet)


def _without_pages(done: LevelDone) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(done).items() if not key.startswith("metrics_")}
