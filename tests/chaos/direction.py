"""The daemon of a chaos test: quick to be tried, on a clock that can be stepped, and held on its way when asked."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.faults import CLOCK
from tests.rig import Daemon, Site

__all__ = ["LEASE_S", "LONG_LEASE_S", "directed", "is_held", "release", "until_held"]

# Enough to be measured, over in about a second and a half.
SMALL = """
[benchmarks.small]
levels = [1]
repeats = 3
requests = 3
prompts = "quick"
max_tokens = 16
warmup_requests = 1
first_token_s = 6
idle_s = 6
"""
LEASE_S = 6.0
LONG_LEASE_S = 30.0
_ROOT = Path(__file__).parents[2]
_LOOK_S = 0.01


def directed(site: Site, config: str = "", *, lease_s: float = LEASE_S, hold: Sequence[str] = ()) -> Daemon:
    """Return a daemon that is not started yet, with a lease; it stops itself whenever it has moved to a state of
    `hold`."""
    daemon = Daemon(site, SMALL + config)
    daemon.program = ("-P", str(_ROOT / "tests" / "rig" / "directed.py"))
    daemon.environment = {
        "PYTHONPATH": str(_ROOT),
        "DIRECTED_CLOCK": str(site.directory / CLOCK),
        "DIRECTED_HOLD": ",".join(hold),
    }
    text = daemon.config.read_text()
    for words, quick in (("lease_s = 30", f"lease_s = {lease_s:g}"), ("renew_s = 2", "renew_s = 1")):
        assert words in text
        text = text.replace(words, quick)
    daemon.config.write_text(text)
    return daemon


def is_held(daemon: Daemon) -> bool:
    """True while the daemon stands still, having stopped itself."""
    if not daemon.is_running:
        return False
    try:
        return Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False


async def until_held(daemon: Daemon, within_s: float = 90) -> None:
    """Wait until the daemon has stopped itself."""
    async with asyncio.timeout(within_s):
        while not is_held(daemon):
            assert daemon.is_running, daemon.log_tail()
            await asyncio.sleep(_LOOK_S)


def release(daemon: Daemon) -> None:
    """Let a daemon that stopped itself go on."""
    daemon.signal(signal.SIGCONT)
