"""Says in words when the guard's lease can't be renewed, and how much of it is left."""

from specd.checks import Check
from specd.cli.text import duration
from specd.errors import HostError, SpecdError
from specd.phases.context import Context
from specd.phases.guard import guard_left_s
from specd.settings import ServiceSettings

__all__ = ["Lease", "lease_check"]

# A dead link is noticed within this time.
_DEAD_LINK_S = 90.0


def lease_check(service: ServiceSettings, *, is_local: bool) -> Check:
    """Check that the guard does not act while specd only looks for a lost link, or stops a unit."""
    guard, stop_s = service.guard, service.stop_timeout_s
    words = f"acts {duration(guard.lease_s)} after the last renewal, renewed every {duration(guard.renew_s)}"
    least_s = stop_s + (0.0 if is_local else _DEAD_LINK_S)
    if guard.lease_s >= least_s:
        return Check.passed("guard.lease", words)
    why = f"a stop may take {duration(stop_s)}"
    if not is_local:
        why += f" and a dead link is noticed after up to {duration(_DEAD_LINK_S)}"
    fix = f"a lease_s of {least_s:.0f} or more gives specd the time to come back from that"
    return Check.warning("guard.lease", f"{words}; {why}", fix)


class Lease:
    """Tells the first renewal that fails, then whenever half of what was left then is gone, and the end of it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._told_s: float | None = None

    def renewed(self) -> None:
        """Take note of a renewal."""
        if self._told_s is not None:
            self._told_s = None
            self._ctx.note("info", f"the guard on {self._ctx.host.name} is renewed again")

    def not_renewed(self, error: SpecdError) -> None:
        """Take note that a renewal has failed; nothing is said where no guard is armed."""
        left_s = guard_left_s(self._ctx.fact("guard"))
        if left_s is None or not isinstance(error, HostError):
            return
        if self._told_s is not None and (self._told_s == 0 or left_s > self._told_s / 2):
            return
        self._told_s = left_s
        end = f"it brings the baseline back in {duration(left_s)}, unless it is renewed by then"
        if left_s == 0:
            end = "its lease has run out, so by now it has started the baseline"
        self._ctx.note("warning", f"the guard on {self._ctx.host.name} could not be renewed ({error}): {end}")
