"""`specd watch` and `submit --wait`: over lost connections, to the trial's end, on a terminal and elsewhere."""

import asyncio
import json
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from tests.contract.daemon_double import Daemon, daemon_at, environment, moved, specd, trial

PROGRESS = {
    "v": 1, "type": "StageProgressed", "seq": 12, "at": "2026-01-31T12:31:02.000Z", "trial": "ab12cd",
    "service": "kimi", "state": "loading", "stage": "weights", "fraction": 0.5, "source": "bytes read", "eta_s": 125.0,
    "detail": "",
}  # fmt: skip
STORY: list[dict[str, Any]] = [
    moved(10, "verify", "verified", "restart", 1),
    moved(11, "restart", "candidate-started", "loading", 2),
    PROGRESS,
    {"v": 1, "type": "CheckFinished", "seq": 13, "at": "2026-01-31T12:31:03.000Z", "trial": "ab12cd", "state": "ready",
     "name": "ready.owner", "status": "unchecked", "evidence": "hidden\x1b[31m", "fix": ""},
    moved(14, "loading", "engine-up", "ready", 20, cause="answers"),
]  # fmt: skip
END = moved(15, "rollback", "restored", "restored", 40, outcome="worse")


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with daemon_at(tmp_path / "specd.sock") as running:
        running.trials["ngram"] = running.trials["ab12cd"] = trial("loading", None)
        running.on_stream_end = lambda: settle(running)
        yield running


def settle(daemon: Daemon, state: str = "restored", outcome: str = "worse") -> None:
    if not daemon.streams:
        daemon.trials["ab12cd"] = trial(state, outcome)


async def test_one_line_an_event_then_the_ending_status_0(daemon: Daemon) -> None:
    daemon.streams = [[*STORY, END]]
    ended = await specd("watch", "ngram", "--socket", str(daemon.socket), TZ="UTC")
    assert ended.status == 0
    lines = ended.out.splitlines()
    assert lines[0] == "12:31:01 ab12cd verify -> restart (verified)"
    assert lines[2] == "12:31:02 ab12cd loading: weights 50% about 2 min 05 s left (from bytes read)"
    assert lines[3] == "12:31:03 ab12cd check ready.owner: unchecked, hidden"
    assert lines[5] == "12:31:40 ab12cd rollback -> restored (restored) [worse]"
    assert "Verdict: worse" in lines
    assert "\x1b" not in ended.out
    assert daemon.stream_queries == [{"since": "0", "trial": "ab12cd"}]


async def test_a_lost_connection_resumes_after_the_last_seq(daemon: Daemon) -> None:
    daemon.streams = [STORY[:2], STORY[2:], [END]]
    ended = await specd("watch", "ngram", "--json", "--socket", str(daemon.socket))
    assert ended.status == 0
    assert [json.loads(line)["seq"] for line in ended.out.splitlines()] == [10, 11, 12, 13, 14, 15]
    assert [query["since"] for query in daemon.stream_queries] == ["0", "11", "14"]


async def test_a_daemon_that_can_t_store_says_so_once(daemon: Daemon) -> None:
    daemon.streams = [STORY[:2], STORY[2:], [END]]

    settle = daemon.on_stream_end

    def degrade() -> None:
        settle()
        daemon.problem = "the database \x1b[31mcan't be used"

    daemon.on_stream_end = degrade
    ended = await specd("watch", "ngram", "--socket", str(daemon.socket))
    assert ended.status == 0
    assert ended.out.count("can't be used") == 1
    assert "\x1b" not in ended.out


async def test_a_daemon_that_was_restarted_is_found_again(tmp_path: Path) -> None:
    socket = tmp_path / "specd.sock"
    async with daemon_at(socket) as first:
        first.trials["ab12cd"] = trial("loading", None)
        first.streams = [STORY]
        watching = asyncio.create_task(specd("watch", "ab12cd", "--socket", str(socket)))
        while not first.stream_queries:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
    async with daemon_at(socket) as second:
        second.trials["ab12cd"] = trial()
        second.streams = [[END]]
        ended = await watching
    assert ended.status == 0
    assert second.stream_queries[0]["since"] == "14"
    assert "the connection to the daemon is lost; trying again" in ended.out


async def test_patience_ends(tmp_path: Path) -> None:
    socket = tmp_path / "specd.sock"
    async with daemon_at(socket) as daemon:
        daemon.trials["ab12cd"] = trial("loading", None)
        watching = asyncio.create_task(specd("watch", "ab12cd", "--patience", "0.3", "--socket", str(socket)))
        while not daemon.stream_queries:
            await asyncio.sleep(0.01)
    ended = await watching
    assert ended.status == 3
    assert "no daemon answers" in ended.err


@pytest.mark.parametrize(
    ("state", "outcome", "status"),
    [
        ("restored", "better", 0), ("kept", "better", 0), ("restored", "inconclusive", 0),
        ("restored", "equivalent", 0),
        ("restored", "failed", 1), ("restored", "cancelled", 1), ("withdrawn", "failed", 1), ("restored", "invalid", 1),
        ("rollback-failed", "worse", 1),
    ],
)  # fmt: skip
async def test_status_by_ending(daemon: Daemon, state: str, outcome: str, status: int) -> None:
    daemon.streams = [[moved(9, "rollback", "restored", state, 40)]]
    daemon.on_stream_end = lambda: settle(daemon, state, outcome)
    assert (await specd("watch", "ngram", "--socket", str(daemon.socket))).status == status


async def test_an_ended_trial_is_told_from_what_is_stored(daemon: Daemon) -> None:
    daemon.trials["ngram"] = daemon.trials["ab12cd"] = trial()
    daemon.stored = [*STORY, END]
    ended = await specd("watch", "ngram", "--socket", str(daemon.socket))
    assert ended.status == 0
    assert "rollback -> restored" in ended.out
    assert daemon.stream_queries == []


async def test_an_earlier_ending_that_was_taken_back_does_not_end_the_watch(daemon: Daemon) -> None:
    reopened = trial("rollback", "better")
    reopened["history"][-1]["at"] = "2026-01-31T12:31:30.000Z"
    daemon.trials["ngram"] = daemon.trials["ab12cd"] = reopened
    daemon.streams = [[moved(9, "benchmark", "keep", "kept", 20), moved(10, "kept", "rollback", "rollback", 30), END]]
    ended = await specd("watch", "ngram", "--json", "--socket", str(daemon.socket))
    assert [json.loads(line)["target"] for line in ended.out.splitlines()] == ["kept", "rollback", "restored"]


async def test_everything_is_followed_from_now_on(daemon: Daemon) -> None:
    daemon.answers["/v1/health"] = (200, {"seq": 41})
    daemon.streams = [[moved(42, "queued", "start", "baseline")]]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd", "watch", "--socket", str(daemon.socket)),
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 10)
    process.terminate()
    await process.wait()
    assert b"ab12cd queued -> baseline (start)" in line
    assert daemon.stream_queries == [{"since": "41"}]


async def test_submit_wait_tells_on_stderr_and_ends_by_outcome(daemon: Daemon, tmp_path: Path) -> None:
    daemon.answers["/v1/trials"] = (201, {"trials": [{"id": "ab12cd", "name": "a", "service": "kimi"}]})
    daemon.streams = [[*STORY, END]]
    (tmp_path / "t.toml").write_text("")
    ended = await specd("submit", str(tmp_path / "t.toml"), "--wait", "--socket", str(daemon.socket))
    assert (ended.status, ended.out) == (0, "ab12cd\n")
    assert "rollback -> restored" in ended.err
    daemon.trials["ab12cd"] = trial("loading", None)
    daemon.streams = [[END]]
    daemon.on_stream_end = lambda: settle(daemon, "restored", "failed")
    ended = await specd("submit", str(tmp_path / "t.toml"), "--wait", "--json", "--socket", str(daemon.socket))
    assert ended.status == 1
    assert json.loads(ended.out)["trials"][0]["outcome"] == "failed"


async def on_terminal(daemon: Daemon, columns: int = 100, **env: str) -> tuple[int, str]:
    """Run watch on a real pseudo-terminal; returns its status and everything it wrote."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd", "watch", "ngram", "--socket", str(daemon.socket)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**{"TERM": "xterm", "TZ": "UTC", **env}),
    )
    os.close(theirs)
    written = asyncio.create_task(asyncio.to_thread(read_all, ours))
    status = await asyncio.wait_for(process.wait(), 20)
    text = await written
    os.close(ours)
    return status, text.decode()


def read_all(descriptor: int) -> bytes:
    text = b""
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:
            return text
        if not part:
            return text
        text += part


async def test_a_terminal_keeps_finished_states_and_draws_the_running_one(daemon: Daemon) -> None:
    daemon.streams = [STORY[:3], [*STORY[3:], END]]
    status, text = await on_terminal(daemon, columns=200)
    assert status == 0
    assert re.search(r"\x1b\[32m12:31:02 ✓ restart +1\.0 s  candidate-started\x1b\[0m\r\n", text)
    drawn = re.findall(r"\r\x1b\[2K([^\r\n]*)", text)
    assert any("loading: loads the weights  [██████████░░░░░░░░░░]" in line for line in drawn)
    assert any(re.search(r"weights 50%  about 2 min 0[345] s left  .* so far  \(from bytes read\)", s) for s in drawn)
    assert any("the connection to the daemon is lost; trying again" in line for line in drawn)
    assert all(len(re.sub(r"\x1b\[\d*m", "", line)) < 200 for line in drawn)
    assert "hidden\x1b[31m" not in text
    assert "Verdict: worse" in text


async def test_no_colour_and_no_utf8_on_a_terminal_that_has_neither(daemon: Daemon) -> None:
    daemon.streams = [STORY[:3], [*STORY[3:], END]]
    status, text = await on_terminal(daemon, columns=120, NO_COLOR="1", LANG="C")
    assert status == 0
    assert re.sub(r"\x1b\[2K", "", text).isascii()
    assert "\x1b[3" not in text
    assert "12:31:02 ok restart" in text
    assert "[##########..........]" in text


async def test_a_narrow_terminal_is_never_overrun(daemon: Daemon) -> None:
    daemon.streams = [STORY[:3], [*STORY[3:], END]]
    _, text = await on_terminal(daemon, columns=40)
    drawn = re.findall(r"\r\x1b\[2K([^\r\n\x1b]*)", text)
    assert any("loading" in line for line in drawn)
    live = [line for line in drawn if line.startswith("  loading")]
    assert live
    assert max(len(line) for line in live) <= 39


async def test_long_lines_are_broken_between_words(daemon: Daemon) -> None:
    why = "the baseline answers and every check of the preflight has passed"
    daemon.streams = [[moved(9, "baseline", "baseline-measured", "write-unit", 1, cause=why), *STORY, END]]
    _, text = await on_terminal(daemon, columns=50, NO_COLOR="1")
    lines = re.sub(r"\r\x1b\[2K[^\r\n]*(?=\r\x1b)|\r\x1b\[2K", "", text).split("\r\n")
    at = next(number for number, line in enumerate(lines) if "✓ baseline" in line)
    assert max(len(line) for line in lines) <= 49
    assert lines[at + 1].startswith(" " * 11 + "baseline-measured: the")
    told = " ".join(line.strip() for line in lines[at : at + 4])
    assert f"baseline-measured: {why}" in told


async def test_a_measurement_shows_its_share_and_its_end(daemon: Daemon) -> None:
    requests = {
        "v": 1, "type": "BenchmarkProgressed", "seq": 13, "trial": "ab12cd", "at": "2026-01-31T12:31:02.000Z",
        "side": "candidate", "concurrency": 4, "repeat": 2, "done": 0, "total": 0, "failed": 0, "output_tok_s": 71.24,
    }  # fmt: skip
    share = {"seq": 14, "done": 3, "total": 5, "fraction": 0.25, "eta_s": 90.0}
    renewed = {"v": 1, "type": "GuardChanged", "seq": 15, "trial": "ab12cd", "state": "renewed", "until": ""}
    began = moved(12, "ready", "token-seen", "benchmark", 20)
    daemon.streams = [[began, requests, renewed], [{**requests, **share}, renewed], [END]]
    _, text = await on_terminal(daemon, columns=200)
    drawn = re.findall(r"\r\x1b\[2K([^\r\n\x1b]*)", text)
    assert any("so far  candidate, concurrency 4, repeat 2: warm-up, 71.2 tok/s" in line for line in drawn)
    measured = r"  benchmark: .*  \[█{5}░{15}\]  25%  about 1 min (30|29|28) s left  .* so far  candidate.* 3 of 5"
    assert any(re.match(measured, line) for line in drawn)


async def test_the_bar_shows_the_whole_start_where_it_is_known(daemon: Daemon) -> None:
    shards = {**PROGRESS, "overall": 0.25, "source": "shards 8/16"}
    daemon.streams = [[*STORY[:2], shards, STORY[3]], [END]]
    _, text = await on_terminal(daemon, columns=200)
    assert re.search(r"\[█{5}░{15}\]  25%  about 2 min 0\d s left  [^\r\n]*weights 50% \(from shards 8/16\)", text)


async def test_an_expected_end_is_shown_before_there_is_any_progress(daemon: Daemon) -> None:
    ends = (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
    daemon.streams = [[{**moved(12, "benchmark", "restore", "rollback", 20), "expected_end_at": ends}], [END]]
    _, text = await on_terminal(daemon, columns=120)
    assert re.search(r"rollback: [^\r\n]*  about (10 min 00|9 min 5\d) s left", text)


async def test_a_dumb_terminal_gets_lines(daemon: Daemon) -> None:
    daemon.streams = [[*STORY, END]]
    _, text = await on_terminal(daemon, TERM="dumb")
    assert "\x1b" not in text
    assert "ab12cd verify -> restart (verified)" in text
