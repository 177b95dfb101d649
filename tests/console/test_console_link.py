"""The daemon goes and comes: the console says so, keeps what it showed, misses nothing."""

from pathlib import Path

from states.events import TrialMoved
from tests.console import story
from tests.console.conftest import MakeConsole
from tests.console.screen import hides, says, shows
from tests.console.server import ApiServer, until

AT = "2026-03-01T12:32:00.000Z"


async def test_without_a_daemon_the_console_says_where_it_looked(make_console: MakeConsole, tmp_path: Path) -> None:
    async with make_console().run_test(size=(200, 24), notifications=True) as pilot:
        await shows(pilot, "daemon away", f"there is no socket at {tmp_path}/d.sock", "waiting for the daemon")


async def test_a_daemon_that_starts_later_is_found(make_console: MakeConsole, tmp_path: Path) -> None:
    async with make_console().run_test(size=(120, 24), notifications=True) as pilot:
        await shows(pilot, "daemon away")
        server = ApiServer(tmp_path / "d.sock")
        await server.start()
        try:
            await shows(pilot, "connected", "eagle3-k2")
        finally:
            await server.stop()


async def test_while_away_everything_stays_and_the_stream_goes_on_where_it_was(
    server: ApiServer, make_console: MakeConsole
) -> None:
    async with make_console().run_test(size=(120, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2", "62%")
        await until(lambda: server.since == [100])
        await server.stop()
        await shows(pilot, "daemon away", "Shown is what it last said", "eagle3-k2", "62%")
        # What happens meanwhile is in the daemon's store.
        move = TrialMoved(
            at=AT, trial=story.LOADING, service="kimi", source="loading", trigger="weights-loaded", target="ready"
        )
        server.change(story.LOADING, state="ready", updated_at=AT, progress=None)
        await server.tell(move)
        await server.start()
        await shows(pilot, "connected", "▶ ready")
        await hides(pilot, "daemon away")
        assert server.since == [100, 100]


async def test_a_daemon_that_only_reads_its_database_says_so_for_as_long_as_that_is_so(
    server: ApiServer, make_console: MakeConsole
) -> None:
    async with make_console().run_test(size=(120, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await until(lambda: server.since == [100])
        server.problem = "the database can't be used: no host is touched"
        await server.cut()
        await shows(pilot, "the database can't be used: no host is touched", "eagle3-k2")
        server.problem = None
        await until(lambda: server.since == [100, 100])
        await server.cut()
        await hides(pilot, "can't be used")


async def test_another_database_is_not_mixed_with_the_old_one(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(120, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await server.stop()
        await shows(pilot, "daemon away")
        server.trials, server.services, server.seq = [], [], 0
        await server.start()
        await shows(pilot, "No trials yet.")
        await until(lambda: server.since[-1] == 0)


async def test_a_daemon_that_refuses_is_said_in_its_words(server: ApiServer, make_console: MakeConsole) -> None:
    server.trials_error = {"code": "token", "message": "a bearer token is needed"}
    async with make_console().run_test(size=(120, 24), notifications=True) as pilot:
        await shows(pilot, "the daemon refuses this console: a bearer token is needed")
        server.trials_error = None
        await shows(pilot, "connected", "eagle3-k2")


async def test_a_trial_that_the_daemon_does_not_know_is_said(server: ApiServer, make_console: MakeConsole) -> None:
    app = make_console()
    async with app.run_test(size=(120, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        app.call_later(app.open_trial, "gone")
        await says(pilot, "gone can't be shown: no such trial")


async def test_frames_of_a_newer_daemon_are_passed_over(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(120, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await until(lambda: server.since)
        await server.send({"v": 2, "type": "MoonRose", "seq": 150})
        await server.send(["no event"])
        server.seq = 150
        await server.tell(TrialMoved(at=AT, trial=story.LOADING, source="loading", trigger="failed", target="rollback"))
        await shows(pilot, "▶ rollback")
