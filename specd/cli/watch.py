"""`specd watch`: follows the event stream, over lost connections, until the trial has settled."""

import argparse
import asyncio
import sys
import time
from datetime import datetime
from typing import Any

from specd.cli.client import ApiClient, StreamLost
from specd.cli.place import api
from specd.cli.show import ending, tell
from specd.cli.terminal import Terminal
from specd.cli.text import clean, moment
from specd.cli.watch_view import JsonView, LineView, LiveView, View
from specd.errors import DaemonUnreachable
from states.table import PARKED, TERMINAL, Outcome

__all__ = ["ended_as_asked", "exit_status", "follow", "watch"]

_TICK_S = 0.2
_LONGEST_WAIT_S = 2.0
_PAGE = 1000
_SETTLED = frozenset(state.value for state in TERMINAL | PARKED)
_ENDED_WELL = frozenset({"kept", "restored"})
# Classes of a trial that a check, or the unit itself, ruled out before anything was stopped.
_REFUSALS = frozenset({"refused", "unit", "engine"})
_JUDGED = frozenset(o.value for o in (Outcome.BETTER, Outcome.WORSE, Outcome.EQUIVALENT, Outcome.INCONCLUSIVE))


def watch(args: argparse.Namespace) -> int:
    """Follow one trial to its end (0 if it ended as asked, 4 if it was refused, else 1), or all until interrupted."""
    try:
        return asyncio.run(_watch(args))
    except KeyboardInterrupt:
        again = f"specd watch {clean(args.id)}".rstrip()
        left = f"the trial goes on; end it with: specd cancel {clean(args.id)}" if args.id else "all trials go on"
        sys.stderr.write(f"\nspecd: stopped watching; {left}; watch again with: {again}\n")
        raise


def ended_as_asked(trial: dict[str, Any]) -> bool:
    """True when a trial reached a verdict and left something proven to serve."""
    return trial.get("state") in _ENDED_WELL and trial.get("outcome") in _JUDGED


def exit_status(*trials: dict[str, Any]) -> int:
    """Return 0 when all ended as asked, 4 when the others were all refused with the baseline untouched, else 1."""
    others = [trial for trial in trials if not ended_as_asked(trial)]
    if not others:
        return 0
    refused = all(trial.get("state") == "withdrawn" and trial.get("class") in _REFUSALS for trial in others)
    return 4 if refused else 1


async def _watch(args: argparse.Namespace) -> int:
    terminal = Terminal.of(sys.stdout)
    async with api(args) as client:
        if args.id:
            trial = await follow(client, args.id, _view(args, terminal, one=True), patience_s=args.patience)
            if not args.json:
                terminal.line()
                tell(ending(trial, terminal), terminal)
            return exit_status(trial)
        health = await client.health()
        view = _view(args, terminal, one=False)
        await _Following(client, "", view, args.patience, since=_last_seq(health)).run()
        return 0


def _view(args: argparse.Namespace, terminal: Terminal, *, one: bool) -> View:
    if args.json:
        return JsonView()
    return LiveView(terminal) if one and terminal.live else LineView(terminal)


def _last_seq(health: Any) -> int:
    seq = health.get("seq") if isinstance(health, dict) else None
    return seq if isinstance(seq, int) else 0


async def follow(client: ApiClient, name: str, view: View, *, patience_s: float = 600.0) -> dict[str, Any]:
    """Show a trial from its first event until it has settled; returns it as `show` has it."""
    trial = await client.trial(name)
    trial_id = str(trial["id"])
    if trial.get("state") in _SETTLED:
        await _replay(client, trial_id, view)
    else:
        await _Following(client, trial_id, view, patience_s, settled_after=_last_move(trial)).run()
    return await client.trial(trial_id)


def _last_move(trial: dict[str, Any]) -> datetime | None:
    history = trial.get("history") or [{}]
    return moment(history[-1].get("at"))


async def _replay(client: ApiClient, trial_id: str, view: View) -> None:
    """Show the stored events of a trial that has settled."""
    since = 0
    try:
        while page := await client.past_events(since, trial_id, _PAGE):
            for event in page:
                view.take(event)
                since = max(since, int(event.get("seq") or 0))
            if len(page) < _PAGE:
                return
    finally:
        view.close()


class _Following:
    """One run along the stream; `since` is the last sequence number that was shown."""

    def __init__(
        self,
        client: ApiClient,
        trial: str,
        view: View,
        patience_s: float,
        *,
        since: int = 0,
        settled_after: datetime | None = None,
    ) -> None:
        self._client = client
        self._trial = trial
        self._view = view
        self._patience_s = patience_s
        self._since = since
        self._settled_after = settled_after
        self._problem = ""

    async def run(self) -> None:
        """Follow until the trial settles; raises DaemonUnreachable when the daemon stays away."""
        ticking = asyncio.create_task(self._tick())
        try:
            await self._follow()
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            self._view.close()

    async def _tick(self) -> None:
        while True:
            self._view.tick()
            await asyncio.sleep(_TICK_S)

    async def _follow(self) -> None:
        lost_at: float | None = None
        wait_s = 0.1
        is_first = True
        while True:
            try:
                async with self._client.events(self._since, self._trial) as events:
                    is_first, lost_at, wait_s = False, None, 0.1
                    await self._tell_health()
                    async for event in events:
                        self._since = max(self._since, int(event.get("seq") or 0))
                        self._view.take(event)
                        if self._settles(event):
                            return
            except (StreamLost, DaemonUnreachable) as error:
                if is_first:
                    raise
                now = time.monotonic()
                if lost_at is None:
                    lost_at = now
                    self._view.lost("the connection to the daemon is lost")
                if isinstance(error, DaemonUnreachable) and now - lost_at > self._patience_s:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    async def _tell_health(self) -> None:
        """Say what is wrong with the daemon, once; it lets its listeners come again when that changes."""
        problem = str((await self._client.health()).get("problem") or "")
        if problem and problem != self._problem:
            self._view.warn(problem)
        self._problem = problem

    def _settles(self, event: dict[str, Any]) -> bool:
        """True for the move that ends the trial; one that a later rollback has taken back does not."""
        if not self._trial or event.get("type") != "TrialMoved" or event.get("trial") != self._trial:
            return False
        at = moment(event.get("at"))
        is_past = at is not None and self._settled_after is not None and at < self._settled_after
        return event.get("target") in _SETTLED and not is_past
