"""Each screen shows what the daemon says, by keys alone, over a real socket."""

from datetime import timedelta

import pytest

from states.events import GuardChanged, NoteAdded, StageProgressed, TrialMoved, TrialSubmitted
from tests.console import story
from tests.console.conftest import MakeConsole
from tests.console.screen import hides, shows, text_of
from tests.console.server import ApiServer, until
from tui.glyphs import ASCII
from tui.widgets.log_view import LogView

AT = "2026-03-01T12:32:00.000Z"
SIZES = [(80, 24), (120, 40)]


@pytest.mark.parametrize("size", SIZES)
async def test_the_first_screen_shows_services_and_trials(
    server: ApiServer, make_console: MakeConsole, size: tuple[int, int]
) -> None:
    async with make_console().run_test(size=size, notifications=True) as pilot:
        text = await shows(pilot, "connected", "kimi on gpu1", "serves nothing yet", "guard 14m00s", "max-seqs-64")
        row = next(line for line in text.splitlines() if "eagle3-k2" in line and "62%" in line)
        assert [word in row for word in ("▶ loading", "6m52s", "22m")] == [True] * 3
        assert text.index("mtp-1") < text.index("ngram-5-4") < text.index("draft-0.6b")


async def test_a_filter_narrows_as_typed_and_escape_clears_it(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "draft-0.6b")
        await pilot.press("slash", *"kimi failed")
        text = await hides(pilot, "ngram-5-4", "mtp-1")
        assert "draft-0.6b" in text
        await pilot.press("enter", "enter")
        await shows(pilot, "specd › trials › draft-0.6b")
        await pilot.press("escape")
        await hides(pilot, "› draft")
        await pilot.press("escape")
        await shows(pilot, "ngram-5-4", "mtp-1")


async def test_a_filter_that_nothing_matches_says_so(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "draft-0.6b")
        await pilot.press("slash", *"nosuch")
        await shows(pilot, "None of 5 trials matches.")


async def test_an_empty_daemon_says_what_to_do(server: ApiServer, make_console: MakeConsole) -> None:
    server.trials, server.services = [], []
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "No trials yet.", "no services yet")
        await pilot.press("enter", "c", "y")
        await shows(pilot, "No trial is selected.", "Nothing is selected.")


@pytest.mark.parametrize("keys", [["j", "enter"], ["down", "l"], ["G", "g", "j", "right"]])
async def test_a_trial_opens_by_arrow_and_vim_keys(
    server: ApiServer, make_console: MakeConsole, keys: list[str]
) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await pilot.press(*keys)
        text = await shows(pilot, f"eagle3-k2 {story.LOADING}", "38 of 61", "outage")
        assert "outage 13m27s of about 1h03m · guard acts in 14m00s · deadline 13:49" in text
        assert "loads the weights" in text
        assert "62%  6m52s left, until 12:37" in text
        assert "read from: journal" in text


async def open_trial(pilot: object, place: int) -> None:
    """Open the trial in this row of the list."""
    await shows(pilot, "max-seqs-64")  # type: ignore[arg-type]
    await pilot.press(*["j"] * place, "enter")  # type: ignore[attr-defined]


async def test_the_panes_of_a_trial_come_one_after_another(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await open_trial(pilot, 2)
        await shows(
            pilot,
            "[result worse]",
            "12.4 % slower at concurrency 1",
            "speed -12.4% (-17.1% to -8.1%)",
            "13.60      15.53   +14.2%",
        )
        await pilot.press("tab")
        await shows(pilot, "[checks 1▲]", "nvidia-smi is not on this host", "to mend it: install it")
        await pilot.press("right_square_bracket")
        text = await shows(pilot, "[changes]", '"method": "ngram"', "HF_TOKEN ***")
        assert "hf_do_not_show" not in text
        await pilot.press("shift+tab", "left_square_bracket", "left_square_bracket")
        await shows(pilot, "[log]", "38 of 61")


async def test_a_wide_screen_shows_log_and_result_together(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(120, 40), notifications=True) as pilot:
        await open_trial(pilot, 3)
        await shows(
            pilot, "[result failed]", "✗ kv-cache: the GPU memory", "Resolved architecture", "✗ loading", "– benchmark"
        )


async def test_hostile_text_is_shown_as_text(server: ApiServer, make_console: MakeConsole) -> None:
    evil = "\x1b[2J[blink]evil[/blink]\x07 name"
    server.change(story.LOADING, name=evil, reason=evil)
    server.services[0]["serving"] = evil
    async with make_console().run_test(size=(120, 40), notifications=True) as pilot:
        await shows(pilot, "[blink]evil[/blink] name")
        await open_trial(pilot, 1)
        text = await shows(pilot, "[blink]evil[/blink] name", "[red]not markup[/red] nor a colour")
        assert not any(ord(char) < 0x20 and char != "\n" for char in text)
        await pilot.press("c")
        await shows(pilot, "Cancel this trial?", "[blink]evil[/blink] name")


async def test_events_move_what_is_shown(server: ApiServer, make_console: MakeConsole) -> None:
    moment = [story.NOW]
    async with make_console(clock=lambda: moment[0]).run_test(size=(80, 24), notifications=True) as pilot:
        await open_trial(pilot, 1)
        await shows(pilot, "62%", "38 of 61")
        await until(lambda: server.since)
        ids = {"trial": story.LOADING, "service": "kimi", "at": AT}
        await server.tell(
            StageProgressed(**ids, state="loading", stage="weights", fraction=0.9, source="memory", eta_s=61)
        )
        await shows(pilot, "90%", "read from: memory")
        await server.tell(GuardChanged(**ids, state="renewed", until="2026-03-01T12:51:04.000Z"))
        await shows(pilot, "guard acts in 20m00s")
        history = [*server.wholes[story.LOADING]["history"]]
        history.append({"state": "cudagraph-compile", "trigger": "weights-loaded", "at": AT, "cause": ""})
        server.change(story.LOADING, state="cudagraph-compile", updated_at=AT, history=history, progress=None)
        moment[0] += timedelta(seconds=66)
        await server.tell(
            TrialMoved(
                **ids,
                source="loading",
                trigger="weights-loaded",
                target="cudagraph-compile",
                expected_end_at="2026-03-01T12:37:40.000Z",
            )
        )
        await shows(pilot, "✓ loading", "▶ cudagraph-compile", "10s of 5m40s", "5m30s left, until 12:37")


async def test_a_new_trial_appears_and_the_cursor_stays_on_its_row(
    server: ApiServer, make_console: MakeConsole
) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await pilot.press("j")
        await until(lambda: server.since)
        server.trials.insert(0, {**server.trials[0], "id": "260301-zzz", "name": "newest", "created_at": AT})
        await server.tell(TrialSubmitted(at=AT, trial="260301-zzz", service="qwen", name="newest", host="gpu2"))
        await shows(pilot, "newest")
        assert pilot.app.subject.trial == story.LOADING  # type: ignore[attr-defined]


async def test_a_log_is_paused_and_followed_again(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await open_trial(pilot, 1)
        await shows(pilot, "38 of 61", "log: following")
        await pilot.press("space")
        server.lines.append({"n": 7, "text": "a line that came late"})
        await shows(pilot, "paused, 1 lines wait")
        assert "came late" not in text_of(pilot.app)
        await pilot.press("f")
        await shows(pilot, "a line that came late", "log: following")


async def test_a_flood_of_lines_stays_bounded_and_says_what_is_skipped(
    server: ApiServer, make_console: MakeConsole
) -> None:
    server.lines = [{"n": n, "text": f"line {n}"} for n in range(1, 100_001)]
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await open_trial(pilot, 1)
        await shows(pilot, "line 100000", "98000 lines skipped on screen")
        assert pilot.app.screen.query_one(LogView).line_count <= 5000


async def test_services_show_serving_trial_guard_and_link(server: ApiServer, make_console: MakeConsole) -> None:
    server.services[1]["link"] = {"connected": False, "since_contact_s": 65.0, "why_down": "no route to host"}
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "max-seqs-64")
        await pilot.press("2")
        text = await shows(pilot, "specd › services", "vllm-kimi.service on gpu1", "a trial takes about 1h03m")
        assert "guard acts in 14m00s" in text
        assert "unknown: no earlier start" in text
        assert "down: no route to host, last contact 1m05s ago" in text
        await pilot.press("j", "enter")
        await shows(pilot, "specd › trials › max-seqs-64")
        await pilot.press("1")
        await shows(pilot, "specd › trials  ")


async def test_what_needs_a_person_is_said_on_every_screen(server: ApiServer, make_console: MakeConsole) -> None:
    server.change(story.LOADING, state="rollback-failed")
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        for key in ("1", "2"):
            await pilot.press(key)
            await shows(pilot, "✗ kimi on gpu1 needs a person: the rollback of eagle3-k2 failed")


async def test_help_lists_every_action_and_closes(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(120, 60), notifications=True) as pilot:
        await shows(pilot, "max-seqs-64")
        await pilot.press("question_mark")
        await shows(pilot, "Everywhere", "Bring the service's baseline back now", "Moving in lists and texts")
        await pilot.press("escape")
        await hides(pilot, "Everywhere")


async def test_the_palette_finds_an_action(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "max-seqs-64")
        await pilot.press("colon", *"servi")
        await shows(pilot, "Go to the services")
        await pilot.press("enter")
        await shows(pilot, "specd › services")


async def test_themes_change_and_ascii_needs_no_other_sign(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console(glyphs=ASCII).run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "> loading", "+ restored")
        for theme in ("light", "high-contrast", "dark"):
            await pilot.press("T")
            await shows(pilot, f"theme: {theme}")
        text = text_of(pilot.app)
        own = [line for line in text.splitlines() if "theme:" not in line]
        assert [char for line in own for char in line if not char.isascii() and char not in "▊▌▍▎▏█▔▁"] == []


@pytest.mark.parametrize("size", [(40, 10), (20, 5), (200, 60)])
async def test_no_size_is_too_small_or_too_wide(
    server: ApiServer, make_console: MakeConsole, size: tuple[int, int]
) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await open_trial(pilot, 1)
        await shows(pilot, "38 of 61")
        focused = pilot.app.focused
        await pilot.resize_terminal(*size)
        await pilot.press("tab", "shift+tab", "escape", "2", "1", "j")
        await pilot.resize_terminal(80, 24)
        await shows(pilot, "max-seqs-64")
        assert focused is not None


async def test_a_note_reaches_the_trial_it_is_about(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(120, 40), notifications=True) as pilot:
        await open_trial(pilot, 1)
        await shows(pilot, "Resolved", "concurrency 8")
        await server.tell(NoteAdded(at=AT, trial=story.LOADING, level="warning", text="the disk is slow"))
        await shows(pilot, "12:32:00 warning: the disk is slow")
