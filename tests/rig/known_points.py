"""Which path through the states must pass which of the points named in the code, and why the others need none.

A point is named here without its `before` and `after`. A unit test reads the code and finds names that are missing.
"""

__all__ = ["BY_PATH", "ELSEWHERE"]

BY_PATH: dict[str, frozenset[str]] = {
    "measured": frozenset(
        {
            *(f"commit move {state}" for state in ("baseline", "write-unit", "verify", "restart", "loading", "ready")),
            *(f"commit move {state}" for state in ("benchmark", "rollback", "restored")),
            *(f"commit fact {key}" for key in ("checks", "baseline", "baseline.start", "host.life", "restart.before")),
            *(f"commit fact {key}" for key in ("baseline.stopped", "candidate.invocation", "candidate", "start.took")),
            *("commit fact candidate.facts", "commit fact dependents"),
            *(f"commit fact {key}" for key in ("levels", "comparison", "guard", "since.loading", "since.rollback")),
            *(
                "commit artefact baseline.unit",
                "commit artefact candidate.unit",
                "commit artefact unit.diff",
                "commit log",
                "commit trials",
            ),
            *("commit level baseline", "commit level candidate"),
            *(f"commit event {name}" for name in ("DaemonStarted", "DaemonStopped", "TrialResumed")),
            *(f"commit event {name}" for name in ("StageProgressed", "CheckFinished", "LevelMeasured")),
            *(f"commit event {name}" for name in ("VerdictReached", "GuardChanged")),
        }
    ),
    "cancelled": frozenset({"commit fact cancel", "commit event CancelRequested"}),
    "refused": frozenset({"commit move withdrawn"}),
    "parked": frozenset({"commit move rollback-failed"}),
}
ELSEWHERE = {
    "commit fact extended.": "an extension by hand; it survives a kill in tests/contract/test_api_steering.py",
    "commit event TrialSubmitted": "told with the answer; who gets none asks again by the key of the submission",
    "commit fact answers": "told only; made from stored levels",
    "commit fact drift": "a measurement by the way; done again where it was not stored",
    "commit level after": "the same",
    "commit event TrialMoved": "part of its move's commit",
    "commit event DeadlineExtended": "told after the fact that holds it",
    "commit event BenchmarkProgressed": "told by a clock that a small benchmark may outrun; nothing depends on it",
    "commit event BaselineReused": "told only; nothing depends on it",
    "commit event TriggerIgnored": "told only; nothing depends on it",
    "commit event HostLost": "told only; nothing depends on it",
    "commit event HostBack": "told only; nothing depends on it",
    "commit event TaskRestarted": "told only; nothing depends on it",
    "commit event NoteAdded": "told only; nothing depends on it",
    "commit move kept": "needs a verdict, which a busy machine may not give; the path is walked where it does",
    "commit move cudagraph-compile": "is left out where a load has ended while the daemon was away",
    "commit move queued": "no move leads there",
}
