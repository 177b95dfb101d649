"""The view model: one immutable state of all that is shown, and a pure reducer (state, what happened) -> state.

An event may come twice (a snapshot already holds it, the stream replays it), so every rule here can be applied again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from states import events as happened
from states.events import Event
from states.table import PARKED, TERMINAL, State
from tui.records import (
    Bench,
    Check,
    Detail,
    Guard,
    HostLink,
    Note,
    Progress,
    Service,
    Step,
    Trial,
    detail_from,
    service_from,
    trial_from,
)
from tui.updates import DaemonAway, DaemonFound, PastLoaded, ServicesLoaded, TrialLoaded, TrialsLoaded, Update
from tui.words import clean, load_words

__all__ = [
    "SETTLED",
    "ViewState",
    "reduce",
    "reduce_all",
]

SETTLED = frozenset(state.value for state in TERMINAL | PARKED)
_MEASURED_IN = {"baseline": State.BASELINE.value, "candidate": State.BENCHMARK.value}
_NOTES = 50
_TRIALS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """All that is shown. `away_since` is "" while the daemon answers; `seq` is the last event that was taken in;
    `problem` is what the daemon says is wrong with it."""

    address: str = ""
    version: str = ""
    is_known: bool = False
    away_since: str = ""
    away_why: str = ""
    problem: str = ""
    seq: int = 0
    services: Mapping[str, Service] = field(default_factory=dict)
    trials: Mapping[str, Trial] = field(default_factory=dict)
    details: Mapping[str, Detail] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    def newest_first(self) -> list[Trial]:
        """Return the trials, the latest first."""
        return sorted(self.trials.values(), key=lambda trial: (trial.created_at, trial.id), reverse=True)

    def parked(self) -> list[Trial]:
        """Return the trials that need a person."""
        return [trial for trial in self.trials.values() if trial.state in _PARKED]


_PARKED = frozenset(state.value for state in PARKED)


def reduce_all(view: ViewState, updates: Sequence[Update]) -> ViewState:
    """Return the state after several updates, in order."""
    for update in updates:
        view = reduce(view, update)
    return view


def reduce(view: ViewState, update: Update) -> ViewState:
    """Return the state after one update; one of an unknown kind changes nothing but the position."""
    if isinstance(update, Event):
        view = replace(view, seq=max(view.seq, update.seq))
        rule = _EVENT_RULES.get(type(update))
        return rule(view, update) if rule else view
    return _LOADED_RULES[type(update)](view, update)


# -- snapshots


def _found(view: ViewState, update: DaemonFound) -> ViewState:
    # A position behind ours means another database: what we saw of the old one says nothing about this one.
    is_other = update.seq < view.seq
    kept = ViewState(address=view.address) if is_other else view
    return replace(
        kept,
        version=clean(update.version),
        is_known=True,
        away_since="",
        away_why="",
        problem=clean(update.problem),
        seq=max(kept.seq, update.seq),
    )


def _away(view: ViewState, update: DaemonAway) -> ViewState:
    return replace(view, away_since=view.away_since or update.at, away_why=clean(update.why))


def _services(view: ViewState, update: ServicesLoaded) -> ViewState:
    found = (service_from(body, update.at) for body in update.services)
    return replace(view, services={service.name: service for service in found if service.name})


def _trials(view: ViewState, update: TrialsLoaded) -> ViewState:
    found = [trial for body in update.trials if (trial := trial_from(body, update.at)).id]
    return replace(view, trials={trial.id: _newer(view.trials.get(trial.id), trial) for trial in found[:_TRIALS]})


def _newer(known: Trial | None, read: Trial) -> Trial:
    """A snapshot may be older than the stream, and lacks some of what it tells; that stays while the state does."""
    if known is None:
        return read
    if known.updated_at > read.updated_at:
        return known
    if known.updated_at < read.updated_at or known.state != read.state:
        return replace(read, measured=known.measured)
    return replace(
        read,
        expected_end_at=read.expected_end_at or known.expected_end_at,
        progress=known.progress or read.progress,
        bench=known.bench,
        measured=known.measured,
    )


def _trial(view: ViewState, update: TrialLoaded) -> ViewState:
    read = trial_from(update.trial, update.at)
    if not read.id:
        return view
    trial = _newer(view.trials.get(read.id), read)
    view = _put_trial(view, trial)
    if trial.updated_at > read.updated_at and read.id in view.details:
        return view
    detail = detail_from(update.trial, update.at)
    if known := view.details.get(read.id):
        detail = replace(detail, expected_s=detail.expected_s or known.expected_s, notes=known.notes, asked=known.asked)
    return replace(view, details={**view.details, read.id: detail})


def _past(view: ViewState, update: PastLoaded) -> ViewState:
    """Take only what a snapshot lacks: the running state's expected end, the benchmark so far, notes."""
    position = view.seq
    for event in update.events:
        if isinstance(event, happened.TrialMoved):
            trial = view.trials.get(event.trial or "")
            if trial and trial.state == event.target and trial.updated_at == event.at:
                view = _put_trial(view, replace(trial, expected_end_at=clean(event.expected_end_at or "")))
        elif isinstance(event, _FROM_THE_PAST):
            view = reduce(view, event)
    # What is past may be ahead of the stream; the stream goes on from where it is.
    return replace(view, seq=position)


_FROM_THE_PAST = (
    happened.BenchmarkProgressed,
    happened.LevelMeasured,
    happened.NoteAdded,
    happened.CancelRequested,
)


# -- events


def _put_trial(view: ViewState, trial: Trial) -> ViewState:
    return replace(view, trials={**view.trials, trial.id: trial})


def _put_detail(view: ViewState, trial: str | None, **changes: Any) -> ViewState:
    known = view.details.get(trial or "")
    if known is None or trial is None:
        return view
    return replace(view, details={**view.details, trial: replace(known, **changes)})


def _submitted(view: ViewState, event: happened.TrialSubmitted) -> ViewState:
    if not event.trial or event.trial in view.trials:
        return view
    trial = Trial(
        id=clean(event.trial),
        name=clean(event.name),
        service=clean(event.service or ""),
        host=clean(event.host),
        state=State.QUEUED.value,
        created_at=event.at,
        updated_at=event.at,
    )
    return _put_trial(view, trial)


def _moved(view: ViewState, event: happened.TrialMoved) -> ViewState:
    trial = view.trials.get(event.trial or "")
    if trial is None or event.at < trial.updated_at:
        return view
    view = _put_trial(
        view,
        replace(
            trial,
            state=clean(event.target),
            outcome=clean(event.outcome or trial.outcome),
            updated_at=event.at,
            expected_end_at=clean(event.expected_end_at or ""),
            progress=trial.progress if trial.progress and trial.progress.state == event.target else None,
            bench=trial.bench if trial.state == event.target else None,
        ),
    )
    detail = view.details.get(trial.id)
    if detail is None:
        return view
    step = Step(clean(event.target), clean(event.trigger), event.at, clean(event.cause))
    is_told = any((known.state, known.at) == (step.state, step.at) for known in detail.history)
    return _put_detail(
        view,
        trial.id,
        history=detail.history if is_told else (*detail.history, step),
        deadline_at=clean(event.deadline_at or ""),
        asked="" if event.target in SETTLED else detail.asked,
    )


def _progressed(view: ViewState, event: happened.StageProgressed) -> ViewState:
    trial = view.trials.get(event.trial or "")
    if trial is None or event.state != trial.state:
        return view
    progress = Progress(
        clean(event.state),
        clean(event.stage),
        event.fraction,
        clean(event.source),
        event.eta_s,
        clean(event.detail),
        event.at,
        event.overall,
    )
    return _put_trial(view, replace(trial, progress=progress))


def _checked(view: ViewState, event: happened.CheckFinished) -> ViewState:
    detail = view.details.get(event.trial or "")
    if detail is None:
        return view
    check = Check(clean(event.name), clean(event.status), clean(event.evidence), clean(event.fix))
    others = tuple(known for known in detail.checks if known.name != check.name)
    return _put_detail(view, event.trial, checks=(*others, check))


def _measuring(view: ViewState, event: happened.BenchmarkProgressed) -> ViewState:
    trial = view.trials.get(event.trial or "")
    if trial is None or trial.state != _MEASURED_IN.get(event.side):
        return view
    bench = Bench(
        clean(event.side), load_words(event.concurrency, event.rate), event.repeat, event.done, event.total,
        event.failed, event.output_tok_s,
    )  # fmt: skip
    return _put_trial(view, replace(trial, bench=bench))


def _measured(view: ViewState, event: happened.LevelMeasured) -> ViewState:
    trial = view.trials.get(event.trial or "")
    level = (clean(event.side), load_words(event.concurrency, event.rate), event.repeat)
    if trial is None or level in trial.measured:
        return view
    return _put_trial(view, replace(trial, measured=(*trial.measured, level)))


def _judged(view: ViewState, event: happened.VerdictReached) -> ViewState:
    trial = view.trials.get(event.trial or "")
    if trial is None:
        return view
    view = _put_trial(view, replace(trial, outcome=clean(event.outcome), reason=clean(event.reason)))
    return _put_detail(view, trial.id, comparison=dict(event.comparison))


def _guarded(view: ViewState, event: happened.GuardChanged) -> ViewState:
    state = "armed" if event.state == "renewed" else clean(event.state)
    guard = Guard(state, clean(event.until or ""))
    service = view.services.get(event.service or "")
    if service is not None and service.trial in ("", event.trial):
        view = replace(view, services={**view.services, service.name: replace(service, guard=guard)})
    return _put_detail(view, event.trial, guard=guard)


def _extended(view: ViewState, event: happened.DeadlineExtended) -> ViewState:
    return _put_detail(view, event.trial, deadline_at=clean(event.deadline_at))


def _cancelling(view: ViewState, event: happened.CancelRequested) -> ViewState:
    trial = view.trials.get(event.trial or "")
    if trial is None or trial.state in SETTLED:
        return view
    return _put_detail(view, event.trial, asked=clean(event.by))


def _linked(view: ViewState, host: str, link: HostLink) -> ViewState:
    changed = {name: replace(service, link=link) for name, service in view.services.items() if service.host == host}
    return replace(view, services={**view.services, **changed})


def _host_lost(view: ViewState, event: happened.HostLost) -> ViewState:
    return _linked(view, event.host, HostLink(connected=False, why_down=clean(event.why), at=event.at))


def _host_back(view: ViewState, event: happened.HostBack) -> ViewState:
    return _linked(view, event.host, HostLink(connected=True, since_contact_s=0.0, at=event.at))


def _noted(view: ViewState, event: happened.NoteAdded) -> ViewState:
    note = Note(clean(event.level), clean(event.text), event.at, clean(event.trial or ""))
    if note in view.notes:
        return view
    view = replace(view, notes=(*view.notes, note)[-_NOTES:])
    detail = view.details.get(event.trial or "")
    if detail is None or note in detail.notes:
        return view
    return _put_detail(view, event.trial, notes=(*detail.notes, note)[-_NOTES:])


_LOADED_RULES: dict[type, Callable[[ViewState, Any], ViewState]] = {
    DaemonFound: _found,
    DaemonAway: _away,
    ServicesLoaded: _services,
    TrialsLoaded: _trials,
    TrialLoaded: _trial,
    PastLoaded: _past,
}
_EVENT_RULES: dict[type[Event], Callable[[ViewState, Any], ViewState]] = {
    happened.TrialSubmitted: _submitted,
    happened.TrialMoved: _moved,
    happened.StageProgressed: _progressed,
    happened.CheckFinished: _checked,
    happened.BenchmarkProgressed: _measuring,
    happened.LevelMeasured: _measured,
    happened.VerdictReached: _judged,
    happened.GuardChanged: _guarded,
    happened.DeadlineExtended: _extended,
    happened.CancelRequested: _cancelling,
    happened.HostLost: _host_lost,
    happened.HostBack: _host_back,
    happened.NoteAdded: _noted,
}
