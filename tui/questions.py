"""What a dangerous action asks before it is done: named host, unit, what serves now, expected outage. Pure."""

from dataclasses import dataclass

from states.table import BEFORE_RESTART, State
from tui.model import SETTLED, ViewState
from tui.pages import duration_or_unknown
from tui.records import Service

__all__ = ["Question", "Refusal", "cancel_question", "rollback_question"]

_BEFORE = frozenset(state.value for state in BEFORE_RESTART)


@dataclass(frozen=True, slots=True)
class Question:
    """One question: facts are (name, value) rows; yes and no say what they do; `target` is what the request names."""

    title: str
    facts: tuple[tuple[str, str], ...]
    consequence: str
    yes: str
    no: str
    target: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is nothing to ask, in words that say what is serving."""

    words: str


def cancel_question(view: ViewState, trial_id: str) -> Question | Refusal:
    """Return the question before a trial is cancelled."""
    trial = view.trials.get(trial_id)
    if trial is None:
        return Refusal("No trial is selected.")
    service = view.services.get(trial.service)
    if trial.state in SETTLED or trial.state == State.ROLLBACK.value:
        return Refusal(f"{trial.name} is in {trial.state}: there is nothing to cancel.{_serving_words(service)}")
    facts = (("trial", f"{trial.name} ({trial.id}), in {trial.state}"), *_facts(trial.service, service))
    if trial.state in _BEFORE:
        consequence = "The baseline has not been touched and goes on serving."
    else:
        consequence = "The candidate is stopped and the baseline started again; until then nothing serves."
    return Question("Cancel this trial?", facts, consequence, "cancel the trial", "let it go on", trial.id)


def rollback_question(view: ViewState, service_name: str) -> Question | Refusal:
    """Return the question before a service's baseline is brought back."""
    service = view.services.get(service_name)
    if service is None:
        return Refusal("No service is selected." if not service_name else f"The daemon has no service {service_name}.")
    trial = view.trials.get(service.trial)
    if not service.trial or (trial and trial.state == State.QUEUED.value):
        return Refusal(f"No trial holds {service.name}; there is nothing to roll back.{_serving_words(service)}")
    state = trial.state if trial else ""
    if state == State.ROLLBACK.value:
        return Refusal(f"{service.name} is being rolled back already.{_serving_words(service)}")
    held = f"{trial.name} ({trial.id}), in {trial.state}" if trial else service.trial
    if state in _BEFORE:
        consequence = "The trial ends. The baseline has not been touched and goes on serving."
    elif state == State.KEPT.value:
        consequence = "The kept candidate is stopped and the baseline started; until it answers, nothing serves."
    else:
        consequence = "The candidate is stopped and the baseline started; until it answers, nothing serves."
    facts = (("held by", held), *_facts(service.name, service))
    return Question("Bring the baseline back now?", facts, consequence, "bring it back", "leave it", service.name)


def _facts(name: str, service: Service | None) -> tuple[tuple[str, str], ...]:
    return (
        ("service", name),
        ("host", service.host if service else "unknown"),
        ("unit", service.unit if service else "unknown"),
        ("serving now", (service.serving if service else "") or "unknown"),
        ("expected outage", duration_or_unknown(service.expected_outage_s if service else None)),
    )


def _serving_words(service: Service | None) -> str:
    return f" Now serving: {service.serving}." if service and service.serving else ""
