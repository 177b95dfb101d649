"""The unit's own settings against what a load of many minutes needs."""

from specd.checking.trial import Plan
from specd.checks import Check

__all__ = ["unit_checks"]

_LONG_S = 600.0
_NOTIFY = frozenset({"notify", "notify-reload"})


def unit_checks(plan: Plan) -> list[Check]:
    """Check the baseline's settings, which a rollback depends on, and those that a candidate has from it."""
    return [_start(plan), _stop(plan), _end(plan)]


def _start(plan: Plan) -> Check:
    name = "unit.start"
    extra = plan.facts.extra
    kind, limit_s = extra.get("Type", "simple"), _seconds(extra.get("TimeoutStartUSec", ""))
    expected_s = plan.expected_s.get("rollback", _LONG_S)
    if kind in _NOTIFY and limit_s is not None and limit_s < expected_s:
        words = f"Type={kind} with TimeoutStartSec={limit_s:.0f}: systemd ends a start that takes longer"
        return Check.warning(name, words, "an engine that never notifies needs Type=exec; else raise TimeoutStartSec")
    watchdog = _seconds(extra.get("WatchdogUSec", ""))
    if kind in _NOTIFY and watchdog is not None:
        return Check.warning(
            name, f"WatchdogSec={watchdog:.0f}: a load that is silent for so long is ended", "take it out"
        )
    return Check.passed(name, f"Type={kind}, nothing limits how long a start may take")


def _stop(plan: Plan) -> Check:
    name = "unit.stop"
    extra = plan.facts.extra
    mode, limit_s = extra.get("KillMode", "control-group"), _seconds(extra.get("TimeoutStopUSec", ""))
    if mode in {"process", "none"}:
        words = f"KillMode={mode} leaves the engine's other processes behind, and they hold the GPUs"
        return Check.warning(name, words, "use KillMode=mixed or control-group; specd ends what is left")
    if limit_s is None or limit_s > _LONG_S:
        words = "TimeoutStopSec is " + ("infinite" if limit_s is None else f"{limit_s:.0f} s")
        return Check.warning(name, f"{words}: an engine that swallows SIGTERM is waited for", "set it to about 30")
    return Check.passed(name, f"KillMode={mode}, SIGKILL after {limit_s:.0f} s")


def _end(plan: Plan) -> Check:
    restart = plan.facts.extra.get("Restart", "no")
    if restart == "no":
        words = "Restart=no: a baseline that crashes after the trial stays down"
        return Check.warning("unit.restarts", words, "Restart=on-failure, unless that is meant")
    return Check.passed("unit.restarts", f"Restart={restart}")


def _seconds(microseconds: str) -> float | None:
    """Return a time limit in seconds, None for none."""
    if not microseconds.isdigit() or int(microseconds) in {0, 2**64 - 1}:
        return None
    return int(microseconds) / 1e6
