"""What a unit is doing now, from `systemctl show`."""

from specd.services.service import UnitStatus
from specd.services.systemd.scope import Scope

__all__ = ["read_status"]

_NAMES = (
    "ActiveState", "SubState", "InvocationID", "MainPID", "Result", "ExecMainCode", "ExecMainStatus", "NRestarts",
    "ControlGroup", "NeedDaemonReload", "Job", "LoadState",
)  # fmt: skip
# Values of siginfo's si_code for a child.
_EXIT_CODES = {"1": "exited", "2": "killed", "3": "dumped"}


async def read_status(scope: Scope, unit: str) -> UnitStatus:
    """Read a unit's status; one that is not there reads as inactive and not existing."""
    values = await scope.show(unit, *_NAMES)

    def number(name: str) -> int:
        text = values.get(name, "0")
        return int(text) if text.isdigit() else 0

    return UnitStatus(
        name=unit,
        exists=values.get("LoadState", "not-found") != "not-found",
        active=values.get("ActiveState", "inactive"),
        sub=values.get("SubState", "dead"),
        invocation=values.get("InvocationID", ""),
        main_pid=number("MainPID"),
        result=values.get("Result", ""),
        exec_code=_EXIT_CODES.get(values.get("ExecMainCode", "0"), ""),
        exec_status=number("ExecMainStatus"),
        restarts=number("NRestarts"),
        control_group=values.get("ControlGroup", ""),
        needs_reload=values.get("NeedDaemonReload") == "yes",
        job=values.get("Job", "") if values.get("Job", "0") != "0" else "",
    )
