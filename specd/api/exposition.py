"""The daemon's own /metrics, in Prometheus text form."""

import time

from specd.api.service import Application
from specd.phases.guard import guard_left_s
from specd.store import TrialRow
from states.table import PARKED, State

__all__ = ["CONTENT_TYPE", "page"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_START = time.time()


def page(app: Application) -> str:
    """Return the metrics page."""
    open_trials = app.store.open_trials()
    lines = [
        "# HELP specd_trials Trials by state and outcome.",
        "# TYPE specd_trials gauge",
        *(f'specd_trials{{state="{s}",outcome="{o}"}} {n}' for (s, o), n in sorted(_counted(app).items())),
        "# HELP specd_trial_state The state of each open trial (always 1).",
        "# TYPE specd_trial_state gauge",
        *(
            f'specd_trial_state{{trial="{row.id}",service="{_escaped(row.service)}",state="{row.state.value}"}} 1'
            for row in open_trials
        ),
        "# HELP specd_needs_person Services whose rollback failed.",
        "# TYPE specd_needs_person gauge",
        f"specd_needs_person {sum(row.state in PARKED for row in open_trials)}",
        "# HELP specd_host_connected Whether the link to a host works (1) or not (0).",
        "# TYPE specd_host_connected gauge",
        *(
            f'specd_host_connected{{host="{_escaped(name)}"}} {int(app.fleet.host(name).link.connected)}'
            for name in app.config.hosts
        ),
        "# HELP specd_guard_remaining_seconds Seconds until the guard on a host acts unless it is renewed.",
        "# TYPE specd_guard_remaining_seconds gauge",
        *_guards(app, open_trials),
        "# TYPE specd_last_event_seq counter",
        f"specd_last_event_seq {app.store.last_seq()}",
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {_START:.3f}",
    ]
    return "\n".join(lines) + "\n"


def _guards(app: Application, open_trials: list[TrialRow]) -> list[str]:
    waiting = ((row, guard_left_s(app.store.fact(row.id, "guard"))) for row in open_trials)
    return [
        f'specd_guard_remaining_seconds{{trial="{row.id}",service="{_escaped(row.service)}"}} {left_s:.1f}'
        for row, left_s in waiting
        if left_s is not None
    ]


def _counted(app: Application) -> dict[tuple[str, str], int]:
    return {(state.value, ""): 0 for state in State} | app.store.counts()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
