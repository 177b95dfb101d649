"""A daemon that ends itself at the points named in the code, and is started again until its trial has settled."""

import asyncio
import signal
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from specd.errors import DaemonUnreachable
from tests.rig.daemon import SETTLED, Daemon, trial_toml
from tests.rig.forks import Forks
from tests.rig.known_points import BY_PATH
from tests.rig.site import Site

__all__ = ["KilledDaemon", "Shown"]

_LOOK_S = 0.05
Shown = dict[str, Any]


class KilledDaemon:
    """Drives a daemon whose process dies at `kill`: one point's name, or `each` for every one it has not passed yet.

    It dies at none before `arm` was called. `kills` counts its deaths; `passed` are the points that some process of it
    has passed; `shown` are the results that anybody could have seen meanwhile, by key, as last seen.
    """

    def __init__(self, site: Site, extra_config: str = "", *, kill: str = "each") -> None:
        self._file = site.directory / "points"
        self._kill = kill
        self.daemon = Daemon(site, extra_config)
        self.daemon.forks = Forks(self.daemon.config, self.daemon.log)
        self.kills = 0
        self.shown: Shown = {}

    def arm(self) -> None:
        """From now on the daemon dies; one that runs is killed at once, so that its successor knows."""
        self.daemon.kill()
        self.daemon.environment = {"SPECD_FAILPOINTS": str(self._file), "SPECD_FAILPOINT_KILL": self._kill}

    @property
    def passed(self) -> list[str]:
        """The points passed, in the order of their first passing."""
        return self._file.read_text().splitlines() if self._file.exists() else []

    def has_passed(self, path: str) -> None:
        """Prove that every point which this path must pass was passed, on both sides of it."""
        passed = set(self.passed)
        missing = {f"{name} {side}" for name in BY_PATH[path] for side in ("before", "after")} - passed
        assert not missing, f"never passed: {sorted(missing)}"

    async def submit(self, flags: dict[str, Any], **spec: Any) -> str:
        """Queue a trial, asking again with the same key for as long as no answer comes."""
        body = {"file": "t.toml", "text": trial_toml(flags, **spec), "key": uuid.uuid4().hex}
        answer = await self.insist(lambda: self.daemon.client.post("/v1/trials", body))
        return str(answer["trials"][0]["id"])

    async def insist(self, ask: Callable[[], Awaitable[Any]], within_s: float = 60) -> Any:
        """Ask until there is an answer, starting the daemon whenever it is gone."""
        async with asyncio.timeout(within_s):
            while True:
                if not self.daemon.is_running:
                    self.kills += self.daemon.ended_by_kill
                    self.daemon.spawn()
                try:
                    return await ask()
                except DaemonUnreachable:
                    await asyncio.sleep(_LOOK_S)

    async def end(self) -> None:
        """Let the daemon end in order, however often it dies of that."""
        while self.daemon.is_running:
            self.daemon.end(signal.SIGTERM)
            if self.daemon.ended_by_kill:
                await self.insist(self.daemon.client.health)

    def close(self) -> None:
        """Kill what still runs."""
        self.daemon.kill()
        assert self.daemon.forks is not None
        self.daemon.forks.close()

    async def until(self, trial: str, *states: str, within_s: float = 240) -> Shown:
        """Wait until the trial is in one of the states; raises AssertionError when it settles in another."""
        async with asyncio.timeout(within_s):
            while True:
                shown: Shown = await self.insist(lambda: self.daemon.client.trial(trial))
                self._remember(shown)
                if shown["state"] in states:
                    return shown
                assert shown["state"] not in SETTLED, (shown["history"][-3:], self.daemon.log_tail()[-1500:])
                await asyncio.sleep(_LOOK_S)

    def _remember(self, shown: Shown) -> None:
        """A result that was shown once is shown ever after."""
        for key in ("outcome", "comparison"):
            before = self.shown.get(key)
            assert before in (None, shown[key]), f"{key} was shown as {before}, then as {shown[key]}"
            self.shown[key] = shown[key]
        for side in ("baseline", "candidate"):
            levels = (shown.get(side) or {}).get("levels") or []
            before = self.shown.get(side, [])
            assert len(levels) >= len(before), f"levels of the {side} were shown and are gone"
            self.shown[side] = levels
