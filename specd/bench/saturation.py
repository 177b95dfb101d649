"""When more load brings nothing: an open loop whose crowd only grows, a closed loop no faster than a smaller one.

In a server that keeps up, the number of open requests settles once the first ones have come back. Where it goes on
growing the rate is above what the server can do, and any latency measured then says only how long one has measured.
"""

from itertools import pairwise
from statistics import fmean

__all__ = ["Crowd", "no_gain"]

# Sends after the first answer, in four equal parts; the first part is still the crowd's coming together.
_FEWEST = 24
# The crowd grew if it is so much larger, and so many of the requests sent meanwhile were never worked off.
_GROWTH = 1.2
_MORE = 3.0
_LEFT_OVER = 0.15
# Growing at so many sends one after the other is no chance.
_HOPELESS = 5
_GAIN = 1.05


class Crowd:
    """How many requests were open at each send of an open loop."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self._has_answer = False
        self._growing = 0

    def sent(self, open_now: int) -> None:
        """Note how many requests are open at a send."""
        if self._has_answer:
            self._open.append(open_now)
            self._growing = self._growing + 1 if self.is_growing else 0

    def answered(self) -> None:
        """Note that a request has come back."""
        self._has_answer = True

    @property
    def is_growing(self) -> bool:
        """True when the crowd grew from part to part and is now well above what it was."""
        size = len(self._open) // 4
        if size * 4 < _FEWEST:
            return False
        parts = [fmean(self._open[number * size : (number + 1) * size]) for number in range(1, 4)]
        early, late = parts[0], parts[-1]
        is_steady_growth = all(smaller < larger for smaller, larger in pairwise(parts))
        return is_steady_growth and late > _GROWTH * early + _MORE and late - early > _LEFT_OVER * 2 * size

    @property
    def is_hopeless(self) -> bool:
        """True when it has been growing for a while."""
        return self._growing >= _HOPELESS

    @property
    def words(self) -> str:
        """The growth in words."""
        size = len(self._open) // 4
        early, late = fmean(self._open[size : 2 * size]), fmean(self._open[-size:])
        return f"requests pile up: {early:.0f} were open at first, then {late:.0f}"


def no_gain(speeds: dict[int, float], concurrency: int) -> str:
    """Return why a concurrency is beyond saturation, "" if it is not; `speeds` are tokens/s by concurrency."""
    below = [smaller for smaller in speeds if smaller < concurrency]
    if not below or concurrency not in speeds:
        return ""
    best = max(below, key=lambda smaller: speeds[smaller])
    if speeds[concurrency] > _GAIN * speeds[best]:
        return ""
    return f"{speeds[concurrency]:.0f} tok/s, and {speeds[best]:.0f} tok/s already at concurrency {best}"
