"""The reducer: snapshots and events in any sensible order give the state that is true."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from states import events as happened
from states.events import Event
from states.table import State
from states.wire import REGISTRY
from tests.console import story
from tui.model import ViewState, reduce, reduce_all
from tui.records import Check, Guard, Note
from tui.updates import DaemonAway, DaemonFound, PastLoaded, ServicesLoaded, TrialLoaded, TrialsLoaded

AT = "2026-03-01T12:31:04.000Z"
LATER = "2026-03-01T12:40:00.000Z"


def view(*updates: Any) -> ViewState:
    """Return the story's state after some more updates."""
    first = [
        DaemonFound("0.1.0", AT, 100),
        TrialsLoaded(story.briefs(), AT),
        ServicesLoaded(story.services(), AT),
        TrialLoaded(story.whole(story.LOADING), AT),
    ]
    return reduce_all(ViewState(address="/run/x.sock"), [*first, *updates])


def moved(target: str, at: str = LATER, seq: int = 101, **fields: Any) -> happened.TrialMoved:
    """Return a move of the loading trial."""
    body = {"source": "loading", "trigger": "weights-loaded", **fields}
    return happened.TrialMoved(seq=seq, at=at, trial=story.LOADING, service="kimi", target=target, **body)


def progressed(fraction: float, state: str = "loading") -> happened.StageProgressed:
    return happened.StageProgressed(
        seq=101, at=LATER, trial=story.LOADING, state=state, stage="weights", fraction=fraction, source="journal"
    )


# -- link


def test_the_daemon_is_found_with_its_position() -> None:
    found = view()
    assert (found.version, found.seq, found.is_known, found.away_since) == ("0.1.0", 100, True, "")


def test_while_the_daemon_is_away_everything_shown_stays() -> None:
    before = view()
    after = reduce_all(before, [DaemonAway("gone", AT), DaemonAway("still gone", LATER)])
    assert (after.away_since, after.away_why) == (AT, "still gone")
    assert (after.trials, after.services, after.details) == (before.trials, before.services, before.details)


def test_the_daemon_coming_back_ends_the_absence_and_keeps_the_state() -> None:
    after = view(DaemonAway("gone", AT), DaemonFound("0.1.1", LATER, 130))
    assert (after.away_since, after.away_why, after.version, after.seq) == ("", "", "0.1.1", 130)
    assert story.LOADING in after.trials


def test_what_is_wrong_with_the_daemon_is_known_until_it_says_otherwise() -> None:
    before = view(DaemonFound("0.1.0", AT, 130, "the disk \x1b[1mis full"))
    assert before.problem == "the disk is full"
    assert reduce_all(before, [DaemonFound("0.1.0", LATER, 130)]).problem == ""


def test_a_position_behind_ours_is_another_database_and_nothing_of_the_old_one_stays() -> None:
    after = view(DaemonFound("0.1.0", LATER, 3))
    assert (after.seq, after.trials, after.details, after.address) == (3, {}, {}, "/run/x.sock")


# -- snapshots


def test_trials_come_newest_first() -> None:
    assert [trial.name for trial in view().newest_first()] == [
        "mtp-1",
        "eagle3-k2",
        "ngram-5-4",
        "draft-0.6b",
        "max-seqs-64",
    ]


def test_a_snapshot_older_than_the_stream_changes_nothing() -> None:
    after = view(
        moved("cudagraph-compile"), TrialsLoaded(story.briefs(), LATER), TrialLoaded(story.whole(story.LOADING), LATER)
    )
    assert after.trials[story.LOADING].state == "cudagraph-compile"
    assert after.details[story.LOADING].history[-1].state == "cudagraph-compile"


def test_a_snapshot_of_the_same_state_keeps_what_only_the_stream_tells() -> None:
    bench = happened.BenchmarkProgressed(
        at=LATER, trial=story.LOADING, side="candidate", concurrency=1, repeat=1, done=3, total=12
    )
    moves = moved("benchmark", expected_end_at="2026-03-01T13:00:00.000Z")
    row = {**story.whole(story.LOADING), "state": "benchmark", "updated_at": LATER}
    after = view(moves, bench, TrialLoaded(row, LATER), TrialsLoaded([row], LATER))
    trial = after.trials[story.LOADING]
    assert (trial.expected_end_at, trial.bench and trial.bench.done) == ("2026-03-01T13:00:00.000Z", 3)


def test_trials_that_the_daemon_no_longer_lists_are_gone() -> None:
    assert list(view(TrialsLoaded(story.briefs()[1:2], AT)).trials) == [story.LOADING]


@pytest.mark.parametrize("body", [{}, {"id": None}, {"id": ""}])
def test_a_trial_without_an_id_is_not_shown(body: dict[str, Any]) -> None:
    assert "" not in view(TrialsLoaded([body], AT), TrialLoaded(body, AT)).trials


def test_fields_of_the_wrong_kind_are_unknown() -> None:
    odd = {
        "id": "x",
        "progress": [1],
        "history": {"no": 1},
        "changes": 3,
        "checks": ["no"],
        "failure": "no",
        "guard": 1,
    }
    after = view(TrialLoaded(odd, AT))
    detail = after.details["x"]
    assert (detail.history, detail.flags, detail.checks, detail.failure, detail.guard) == ((), {}, (), None, None)
    assert after.trials["x"].progress is None


def test_external_text_in_snapshots_is_harmless() -> None:
    after = view(TrialLoaded({**story.whole(story.FAILED), "name": "\x1b[2Jname", "note": "a\nb"}, AT))
    failure = after.details[story.FAILED].failure
    assert after.trials[story.FAILED].name == "name"
    assert after.details[story.FAILED].note == "a b"
    assert failure is not None
    assert failure.lines[1] == "(EngineCore pid=4121) ERROR Try increasing [bold]gpu_memory_utilization[/bold]"


# -- events


def test_a_new_trial_is_queued() -> None:
    event = happened.TrialSubmitted(seq=101, at=LATER, trial="260301-new", service="kimi", name="n", host="gpu1")
    trial = view(event, event).trials["260301-new"]
    assert (trial.state, trial.name, trial.host, trial.created_at) == ("queued", "n", "gpu1", LATER)


def test_a_move_changes_state_clock_and_history_once() -> None:
    move = moved("cudagraph-compile", deadline_at="2026-03-01T14:00:00.000Z", cause="all shards")
    once, twice = view(move), view(move, move)
    assert once == twice
    trial, detail = once.trials[story.LOADING], once.details[story.LOADING]
    assert (trial.state, trial.updated_at, trial.progress) == ("cudagraph-compile", LATER, None)
    assert detail.deadline_at == "2026-03-01T14:00:00.000Z"
    assert (detail.history[-1].state, detail.history[-1].cause) == ("cudagraph-compile", "all shards")
    assert len(detail.history) == 6


def test_a_replayed_older_move_does_not_turn_time_back() -> None:
    after = view(moved("restart", at="2026-03-01T12:17:37.000Z"))
    assert after.trials[story.LOADING].state == "loading"


def test_a_move_of_a_trial_that_is_not_shown_only_moves_the_position() -> None:
    event = happened.TrialMoved(seq=140, at=LATER, trial="other", source="queued", trigger="start", target="baseline")
    assert view(event) == dataclasses.replace(view(), seq=140)


def test_progress_counts_for_the_running_state_only() -> None:
    now = view(progressed(0.7)).trials[story.LOADING].progress
    assert now is not None
    assert (now.fraction, now.source, now.at) == (0.7, "journal", LATER)
    assert view(progressed(0.1, "verify")).trials[story.LOADING].progress == view().trials[story.LOADING].progress


def test_a_check_replaces_the_one_of_its_name() -> None:
    event = happened.CheckFinished(at=LATER, trial=story.LOADING, state="verify", name="port.free", status="failed")
    checks = view(event).details[story.LOADING].checks
    assert [check for check in checks if check.name == "port.free"] == [Check("port.free", "failed")]
    assert len(checks) == 8


def test_measured_levels_are_counted_once() -> None:
    level = happened.LevelMeasured(at=LATER, trial=story.LOADING, side="baseline", concurrency=8, repeat=2)
    assert view(level, level).trials[story.LOADING].measured == (("baseline", "concurrency 8", 2),)


def test_requests_of_a_side_that_is_not_being_measured_are_not_shown() -> None:
    bench = happened.BenchmarkProgressed(
        at=LATER, trial=story.LOADING, side="baseline", concurrency=1, repeat=1, done=3, total=12
    )
    assert view(bench).trials[story.LOADING].bench is None
    assert view(moved("baseline"), bench).trials[story.LOADING].bench is not None


def test_a_verdict_is_shown_with_its_comparison() -> None:
    event = happened.VerdictReached(
        at=LATER, trial=story.LOADING, outcome="better", reason="faster", comparison={"estimate": 0.2}
    )
    after = view(event)
    assert (after.trials[story.LOADING].outcome, after.trials[story.LOADING].reason) == ("better", "faster")
    assert after.details[story.LOADING].comparison == {"estimate": 0.2}


@pytest.mark.parametrize(("told", "shown"), [("armed", "armed"), ("renewed", "armed"), ("fired", "fired")])
def test_a_guard_changes_for_trial_and_service(told: str, shown: str) -> None:
    event = happened.GuardChanged(at=LATER, trial=story.LOADING, service="kimi", state=told, until=LATER)
    after = view(event)
    assert after.details[story.LOADING].guard == Guard(shown, LATER)
    assert after.services["kimi"].guard == Guard(shown, LATER)
    assert after.services["qwen"].guard == view().services["qwen"].guard


def test_a_longer_deadline_is_shown() -> None:
    event = happened.DeadlineExtended(at=LATER, trial=story.LOADING, state="loading", minutes=30, deadline_at="x")
    assert view(event).details[story.LOADING].deadline_at == "x"


def test_who_asked_for_the_end_is_shown_until_the_end() -> None:
    asked = happened.CancelRequested(at=LATER, trial=story.LOADING, by="ann")
    assert view(asked).details[story.LOADING].asked == "ann"
    assert view(asked, moved("restored")).details[story.LOADING].asked == ""
    assert view(moved("restored"), asked).details[story.LOADING].asked == ""


def test_a_lost_host_is_lost_for_its_services_only() -> None:
    lost = happened.HostLost(at=LATER, host="gpu1", why="no route")
    after = view(lost)
    assert (after.services["kimi"].link.connected, after.services["kimi"].link.why_down) == (False, "no route")
    assert after.services["qwen"].link.connected is True
    back = reduce(after, happened.HostBack(at=LATER, host="gpu1", away_s=3.0))
    assert back.services["kimi"].link.connected is True


def test_notes_are_kept_once_and_bounded() -> None:
    note = happened.NoteAdded(at=LATER, trial=story.LOADING, level="warning", text="slow \x1b[1mdisk")
    after = view(note, note)
    assert after.notes == (Note("warning", "slow disk", LATER, story.LOADING),)
    assert after.details[story.LOADING].notes == after.notes
    many = [happened.NoteAdded(at=LATER, level="info", text=str(n)) for n in range(200)]
    assert [note.text for note in view(*many).notes] == [str(n) for n in range(150, 200)]


def test_a_parked_trial_is_known_to_need_a_person() -> None:
    assert [trial.id for trial in view(moved("rollback-failed")).parked()] == [story.LOADING]


# -- the past


def test_the_past_fills_in_what_no_snapshot_holds_and_moves_nothing() -> None:
    entered = "2026-03-01T12:19:00.000Z"
    before = view()
    after = reduce(
        before,
        PastLoaded(
            [
                moved("loading", at=entered, seq=900, expected_end_at="2026-03-01T12:37:30.000Z"),
                moved("restored", at=LATER, seq=901),
                happened.NoteAdded(seq=902, at=LATER, trial=story.LOADING, level="info", text="n"),
            ]
        ),
    )
    trial = after.trials[story.LOADING]
    assert (trial.expected_end_at, trial.state) == ("2026-03-01T12:37:30.000Z", "loading")
    assert after.details[story.LOADING].notes[0].text == "n"
    assert after.seq == before.seq


# -- all events


def _event(name: str) -> Event:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(REGISTRY[name]):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            fields[field.name] = (
                1 if field.name in ("pid", "done", "total", "concurrency", "repeat", "minutes") else "x"
            )
    if "away_s" in fields:
        fields["away_s"] = 1.0
    return REGISTRY[name](**{**fields, "seq": 105, "at": LATER, "trial": story.LOADING, "service": "kimi"})


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_event_of_the_vocabulary_can_be_taken_twice(name: str) -> None:
    event = _event(name)
    once = view(event)
    assert once.seq == 105
    assert reduce(once, event) == once


@settings(max_examples=60)
@given(st.lists(st.sampled_from([state.value for state in State]), max_size=6))
def test_replaying_a_stretch_of_moves_gives_the_same_state(targets: list[str]) -> None:
    moves = [moved(target, at=f"2026-03-01T13:00:{n:02}.000Z", seq=101 + n) for n, target in enumerate(targets)]
    after = view(*moves)
    assert reduce_all(after, moves) == after
    if targets:
        assert after.trials[story.LOADING].state == targets[-1]
