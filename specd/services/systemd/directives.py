"""What a candidate does with each directive of the baseline: carries it over, has its own instead, or leaves it out."""

from dataclasses import dataclass

from specd.services.service import UnitFacts
from specd.services.systemd.unitfile import Assignment, parse_parts

__all__ = ["Fates", "directives_of", "fates", "is_common", "is_for_all_services", "stays"]

# The trial has rules of its own for when to give up and how to stop, and reads the candidate's journal.
_REPLACED = {
    "Unit": frozenset((
        "Description", "StartLimitInterval", "StartLimitIntervalSec", "StartLimitBurst",
    )),
    "Service": frozenset((
        "ExecStart", "Restart", "RestartSec", "RestartSteps", "RestartMaxDelaySec", "RestartMode",
        "RestartPreventExitStatus", "RestartForceExitStatus", "TimeoutSec", "TimeoutStartSec", "TimeoutStopSec",
        "TimeoutAbortSec", "TimeoutStartFailureMode", "TimeoutStopFailureMode", "KillMode", "SendSIGKILL", "SendSIGHUP",
        "FinalKillSignal", "UnsetEnvironment", "StandardOutput", "StandardError", "LogRateLimitIntervalSec",
        "LogRateLimitBurst", "StartLimitInterval", "StartLimitBurst",
    )),
}  # fmt: skip
# The baseline's own affair, or a surprise: raising alarms, rebooting the machine, stopping an unneeded unit, ending by
# the clock, a bus name or a file that only one unit can have.
_LEFT_OUT = {
    "Unit": frozenset((
        "Documentation", "SourcePath", "OnFailure", "OnSuccess", "OnFailureJobMode", "OnSuccessJobMode",
        "OnFailureIsolate", "StartLimitAction", "FailureAction", "SuccessAction", "FailureActionExitStatus",
        "SuccessActionExitStatus", "RebootArgument", "JobTimeoutSec", "JobRunningTimeoutSec", "JobTimeoutAction",
        "JobTimeoutRebootArgument", "RefuseManualStart", "RefuseManualStop", "StopWhenUnneeded", "CollectMode",
        "AllowIsolate", "IgnoreOnIsolate", "SurviveFinalKillSignal",
    )),
    "Service": frozenset((
        "RuntimeMaxSec", "RuntimeRandomizedExtraSec", "RemainAfterExit", "GuessMainPID", "PIDFile",
        "FileDescriptorStoreMax", "FileDescriptorStorePreserve", "LogNamespace", "LogLevelMax", "StartLimitAction",
        "FailureAction", "RebootArgument", "BusName",
    )),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fates:
    """Names of directives, each once, in the order of their first appearance."""

    carried: tuple[str, ...]
    replaced: tuple[str, ...]
    left_out: tuple[str, ...]


def is_for_all_services(path: str) -> bool:
    """Whether a drop-in applies to every service: systemd applies it to the candidate by itself."""
    return path.rpartition("/")[0].endswith("/service.d")


def directives_of(base: UnitFacts) -> list[Assignment]:
    """Return the assignments of [Unit] and [Service] that are the baseline's own, in the order in which they count."""
    parts = parse_parts(base.text, [base.fragment_path, *base.drop_in_paths])
    return [
        item
        for path, items in parts.items()
        if not is_for_all_services(path)
        for item in items
        if item.section in _REPLACED
    ]


def is_common(item: Assignment) -> bool:
    """Whether a directive has the same meaning in a candidate's file as in its baseline's."""
    section = item.section
    return section in _REPLACED and item.key not in _REPLACED[section] and item.key not in _LEFT_OUT[section]


def stays(base: UnitFacts, item: Assignment) -> bool:
    """Whether a directive is carried over to the candidate."""
    # Only a service that notifies can feed a watchdog.
    return is_common(item) and (item.key != "WatchdogSec" or base.extra.get("Type", "").startswith("notify"))


def fates(base: UnitFacts) -> Fates:
    """Sort the baseline's directives by what becomes of them."""
    carried: dict[str, None] = {}
    replaced: dict[str, None] = {}
    left_out: dict[str, None] = {}
    for item in directives_of(base):
        where = carried if stays(base, item) else replaced if item.key in _REPLACED[item.section] else left_out
        where[item.key] = None
    return Fates(tuple(carried), tuple(replaced), tuple(left_out))
