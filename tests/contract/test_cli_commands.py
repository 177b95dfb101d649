"""Every command of the real command line against an API on a real socket: words, JSON, exit status."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.daemon_double import Daemon, daemon_at, environment, specd, trial

COMMANDS = (
    *("start", "submit", "plan", "trials", "show", "watch", "cancel", "rollback", "extend"),
    *("check", "import", "rehearse", "report", "demo"),
)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with daemon_at(tmp_path / "specd.sock") as running:
        yield running


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trials.toml"
    path.write_text('[[trial]]\nname = "a"\n')
    return path


async def test_help_names_every_command_and_costs_less_than_a_fifth_of_a_second() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-m", "specd", "--help"], env=environment(), capture_output=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert cpu_s < 0.2
    for command in COMMANDS:
        assert f"    {command} " in ended.stdout.decode()
    assert "exit status: 0 done" in ended.stdout.decode()


@pytest.mark.parametrize("command", COMMANDS)
async def test_each_command_has_help_with_an_example(command: str) -> None:
    ended = await specd(command, "--help")
    assert ended.status == 0
    assert f"example:\n  specd {command}" in ended.out.replace("specd watch $(specd submit", "specd submit")


@pytest.mark.parametrize(
    "words",
    [
        (), ("nonsense",), ("show",), ("extend", "x", "soon"), ("extend", "x", "-1"), ("extend", "x", "nan"),
        ("trials", "--limit", "0"), ("submit", "/no/such/file"), ("submit", "/"), ("trials", "--config", "/no/config"),
        ("start", "--config", "/no/config"), ("start",), ("check", "--here"), ("report", "--format", "pdf"),
        ("submit", "x", "--unknown"), ("trials", "--socket", "http://h:1", "--token-file", "/no/token"),
    ],
)  # fmt: skip
async def test_wrong_usage_is_status_2_with_words(words: tuple[str, ...]) -> None:
    ended = await specd(*words, SPECD_CONFIG="" if words != ("start",) else "/no/such.toml")
    assert ended.status == 2
    assert ended.out == ""
    assert ended.err.strip()


@pytest.mark.parametrize(
    "words",
    [
        ("trials",), ("show", "x"), ("watch", "x"), ("watch",), ("cancel", "x"), ("rollback", "x"),
        ("extend", "x", "1"), ("report",),
    ],
)  # fmt: skip
async def test_no_daemon_is_status_3_and_says_which_socket_and_how_to_start(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    ended = await specd(*words, "--socket", str(tmp_path / "none.sock"))
    assert ended.status == 3
    assert str(tmp_path / "none.sock") in ended.err
    assert "specd start" in ended.err


async def test_a_dead_daemon_s_socket_is_status_3(tmp_path: Path) -> None:
    async with daemon_at(tmp_path / "specd.sock"):
        os.rename(tmp_path / "specd.sock", tmp_path / "dead.sock")
    ended = await specd("trials", "--socket", str(tmp_path / "dead.sock"))
    assert ended.status == 3
    assert "nobody listens there" in ended.err


async def test_the_socket_comes_from_option_environment_or_config(daemon: Daemon, tmp_path: Path) -> None:
    daemon.answers["/v1/trials"] = (200, {"trials": []})
    config = tmp_path / "c.toml"
    config.write_text('[daemon]\nsocket = "specd.sock"\n')
    assert (await specd("--socket", str(daemon.socket), "trials")).status == 0
    assert (await specd("trials", SPECD_SOCKET=str(daemon.socket))).status == 0
    assert (await specd("trials", "--config", str(config))).status == 0
    assert (await specd("trials", SPECD_CONFIG=str(config))).status == 0
    # A client needs no more of the default config than the socket; one that is named has to be right.
    config.write_text('[daemon]\nsocket = "specd.sock"\n[oops]\n')
    assert (await specd("trials", SPECD_CONFIG=str(config))).status == 0
    ended = await specd("trials", "--config", str(config))
    assert ended.status == 2
    assert f"{config}:3: oops: unknown key" in ended.err


async def test_submit_prints_ids_and_sends_the_text_with_a_key(daemon: Daemon, file: Path) -> None:
    queued = [{"id": "ab12cd", "name": "a", "service": "kimi", "state": "queued"}]
    daemon.answers["/v1/trials"] = (201, {"trials": queued})
    ended = await specd("submit", str(file), "--socket", str(daemon.socket))
    assert (ended.status, ended.out) == (0, "ab12cd\n")
    [(_, _, body)] = daemon.asked
    assert body == {"file": str(file), "text": file.read_text(), "rehearsal": False, "key": body["key"]}
    assert len(body["key"]) == 32
    ended = await specd("rehearse", "-", "--json", "--socket", str(daemon.socket), stdin=b"x = 1")
    assert json.loads(ended.out) == {"trials": queued}
    body = daemon.asked[-1][2]
    assert (body["file"], body["text"], body["rehearsal"]) == ("<stdin>", "x = 1", True)


async def test_a_submit_cut_off_is_sent_again_under_the_same_key(daemon: Daemon, file: Path) -> None:
    daemon.answers["/v1/trials"] = (201, {"trials": [{"id": "ab12cd"}]})
    daemon.hangs_up_on = "/v1/trials"
    ended = await specd("submit", str(file), "--socket", str(daemon.socket))
    assert (ended.status, ended.out) == (0, "ab12cd\n")
    keys = [body["key"] for _, _, body in daemon.asked]
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def test_an_api_error_s_message_and_status_are_the_command_s(daemon: Daemon, file: Path) -> None:
    problem = {"file": "t.toml", "line": 3, "key": "trial[0].flags", "text": "must be a table"}
    refusal = {"code": "config", "message": "refused\x1b]0;x\x07", "exit_code": 2, "problems": [problem]}
    daemon.answers["/v1/trials"] = (422, refusal)
    ended = await specd("submit", str(file), "--socket", str(daemon.socket))
    assert ended.status == 2
    assert ended.err == "specd: refused\nt.toml:3: trial[0].flags: must be a table\n"
    daemon.answers["/v1/trials/x/cancel"] = (409, {"code": "refused", "message": "it has ended", "exit_code": 4})
    ended = await specd("cancel", "x", "--socket", str(daemon.socket))
    assert (ended.status, ended.err) == (4, "specd: it has ended\n")
    assert (await specd("show", "nobody", "--socket", str(daemon.socket))).status == 2


async def test_an_answer_that_is_not_the_api_s_is_an_error_in_words(daemon: Daemon) -> None:
    daemon.answers["/v1/trials"] = (200, ["no object"])
    ended = await specd("trials", "--socket", str(daemon.socket))
    assert ended.status == 1
    assert "specd: " in ended.err


async def test_trials_lists_and_escapes(daemon: Daemon) -> None:
    running = trial("loading", None, progress={"fraction": 0.52}, name="evil\x1b[2J\u202ename")
    daemon.answers["/v1/trials"] = (200, {"trials": [running, trial()]})
    ended = await specd("trials", "--socket", str(daemon.socket), "--limit", "7")
    assert "loading 52%" in ended.out
    assert "evilname" in ended.out
    assert "\x1b" not in ended.out
    assert daemon.asked[0][1] == "/v1/trials?limit=7"
    assert json.loads((await specd("--json", "trials", "--socket", str(daemon.socket))).out)["trials"][1] == trial()


async def test_show_tells_the_story_and_json_is_the_api_s_object(daemon: Daemon) -> None:
    daemon.trials["ngram-5-4"] = trial()
    ended = await specd("show", "ngram-5-4", "--socket", str(daemon.socket), TZ="UTC")
    assert ended.status == 0
    for words in (
        "Trial ngram-5-4 (ab12cd)",
        "restored: the baseline serves, proven",
        '--speculative-config {"method": "ngram"}',
        "--api-key ***",
        "A = (removed)",
        "12:00:00 baseline 31 min 00 s restored: token seen",
        "Checks: 1 passed, but",
        "unchecked engine.flags no GPU to mend",
        "to mend it: run it there",
        "time per token, median (ms) 13.60 17.00 +25.0%",
        "acceptance length - 2.41",
        "Verdict: worse",
        "speed by time per token -20.0% (95% interval -22.0% to -18.0%) at concurrency 1, slower",
        "verifying 6 tokens wakes more experts than decoding one",
        "the baseline vllm-kimi.service",
        "specd report ab12cd -o report.html",
    ):
        assert words in " ".join(ended.out.split()), words
    assert "sk-1" not in ended.out
    assert json.loads((await specd("show", "ngram-5-4", "--json", "--socket", str(daemon.socket))).out) == trial()


async def test_show_says_why_a_trial_failed_and_what_to_do(daemon: Daemon) -> None:
    failure = {"kind": "gpu-memory", "sentence": "no room", "lines": ["CUDA out\r\x1b[1mof memory"], "hint": "less"}
    daemon.trials["x"] = trial("rollback-failed", "failed", failure=failure, comparison=None, serving="nothing")
    ended = await specd("show", "x", "--socket", str(daemon.socket))
    for words in ("Why it failed: gpu-memory", "| CUDA out of memory", "hint: less", "specd rollback kimi"):
        assert words in ended.out, words


async def test_show_log_prints_the_engine_s_lines_without_their_control(daemon: Daemon) -> None:
    daemon.trials["x"] = trial()
    daemon.log = [{"n": n, "at": 1.5, "pid": 7, "text": f"10%\r\x1b[32m{n}%\r\n"} for n in range(1, 2502)]
    ended = await specd("show", "x", "--log", "--socket", str(daemon.socket), TZ="UTC")
    assert ended.out.splitlines() == [f"00:00:01 7 {n}%" for n in range(1, 2502)]
    ended = await specd("show", "x", "--log", "--json", "--socket", str(daemon.socket))
    assert [json.loads(line) for line in ended.out.splitlines()] == daemon.log


async def test_plan_shows_diffs_and_checks_and_is_status_4_when_one_failed(daemon: Daemon, file: Path) -> None:
    found = {
        "trial": {"name": "a", "service": "kimi", "host": "gpu1"},
        "baseline": {"unit": "k.service", "invocation": "i1"},
        "unit_diff": "--- k\n+++ c\n-Restart=always\n+Restart=no\n",
        "argv_diff": ["- 4", "+ 8"],
        "expected_outage_s": 3725,
        "checks": [{"name": "unit.argv", "status": "failed", "evidence": "--x is 1", "fix": "write 2"}],
        "ok": False,
    }
    daemon.answers["/v1/plan"] = (200, {"plans": [found]})
    ended = await specd("plan", str(file), "--socket", str(daemon.socket))
    assert ended.status == 4
    for words in ("1 h 02 min", "  -Restart=always\n  +Restart=no", "  - 4\n  + 8", "failed     unit.argv  --x is 1"):
        assert words in ended.out, words
    assert "It would be refused: 1 check failed; nothing was touched." in ended.out
    daemon.answers["/v1/plan"] = (200, {"plans": [{**found, "ok": True, "checks": [], "expected_outage_s": None}]})
    ended = await specd("plan", str(file), "--socket", str(daemon.socket))
    assert ended.status == 0
    assert "not known" in ended.out
    assert json.loads((await specd("plan", str(file), "--json", "--socket", str(daemon.socket))).out)["plans"][0]["ok"]


async def test_check_asks_the_daemon_and_is_status_4_when_one_failed(daemon: Daemon) -> None:
    failed = {"name": "host.sudo", "status": "failed", "evidence": "wants a password", "fix": "add a rule"}
    daemon.answers["/v1/check"] = (200, {"hosts": [{"name": "gpu1", "checks": [failed]}], "services": []})
    ended = await specd("check", "--socket", str(daemon.socket))
    assert ended.status == 4
    assert "host gpu1\n  failed     host.sudo  wants a password\n" in ended.out
    assert "to mend it: add a rule" in ended.out
    assert (await specd("check", "--json", "--socket", str(daemon.socket))).status == 4
    passed = {**failed, "status": "passed"}
    daemon.answers["/v1/check"] = (200, {"hosts": [{"name": "gpu1", "checks": [passed]}], "services": []})
    assert (await specd("check", "--socket", str(daemon.socket))).status == 0


async def test_steering_says_who_asks(daemon: Daemon) -> None:
    daemon.answers["/v1/trials/a%2Fb/cancel"] = daemon.answers["/v1/trials/a/b/cancel"] = (202, {"id": "ab12cd"})
    daemon.answers["/v1/services/kimi/rollback"] = (202, {"id": "ab12cd"})
    daemon.answers["/v1/trials/x/extend"] = (200, {"deadline_at": "2026-01-31T12:00:00.000Z"})
    at = ("--socket", str(daemon.socket))
    assert (await specd("cancel", "a/b", "--why", "traffic", *at, SUDO_USER="ann")).status == 0
    assert (await specd("rollback", "kimi", *at, SUDO_USER="ann")).status == 0
    ended = await specd("extend", "x", "2.5", *at, TZ="UTC")
    assert "2.5 min more; its deadline is now 2026-01-31 12:00:00 UTC" in ended.out
    assert daemon.asked == [
        ("POST", "/v1/trials/a%2Fb/cancel", {"by": "ann", "why": "traffic"}),
        ("POST", "/v1/services/kimi/rollback", {"by": "ann"}),
        ("POST", "/v1/trials/x/extend", {"minutes": 2.5}),
    ]


async def test_report_in_each_form_and_into_a_file(daemon: Daemon, tmp_path: Path) -> None:
    daemon.trials["ab12cd"] = trial()
    daemon.answers["/v1/trials"] = (200, {"trials": [trial("loading", None, id="running"), trial()]})
    at = ("--socket", str(daemon.socket))
    assert (await specd("report", *at)).out.startswith("# Trials\n")
    assert "ngram-5-4" in (await specd("report", "ab12cd", "--format", "csv", *at)).out
    assert json.loads((await specd("report", "ab12cd", "--json", *at)).out) == {"trials": [trial()]}
    page = tmp_path / "r.html"
    assert (await specd("report", "ab12cd", "-o", str(page), *at)).status == 0
    assert page.read_text().startswith("<!doctype html>")
    assert page.stat().st_mode & 0o777 == 0o644
    ended = await specd("report", "ab12cd", "-o", str(tmp_path / "none" / "r.html"), *at)
    assert ended.status == 2
    assert "can't be written" in ended.err


async def test_a_reader_that_goes_away_ends_the_command_quietly(daemon: Daemon) -> None:
    daemon.answers["/v1/trials"] = (200, {"trials": [trial(name=f"t{n}") for n in range(5000)]})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd", "trials", "--limit", "9999", "--socket", str(daemon.socket)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    await process.stdout.readline()
    transport = process._transport  # type: ignore[attr-defined]
    transport.get_pipe_transport(1).close()
    assert await process.stderr.read() == b""
    assert await process.wait() == 0


async def test_a_locale_without_utf8_gets_ascii(daemon: Daemon) -> None:
    daemon.answers["/v1/trials"] = (200, {"trials": [trial(name="größe")]})
    ended = await specd(
        "trials", "--socket", str(daemon.socket), LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"
    )
    assert ended.status == 0
    assert "gr??e" in ended.out


async def test_a_token_goes_along_over_tcp(tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        seen.append(next((line for line in head.splitlines() if line.startswith("Authorization")), None))
        body = b'{"trials": []}'
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    (tmp_path / "token").write_text("abc\n")
    words = ("trials", "--socket", f"http://127.0.0.1:{port}", "--token-file", str(tmp_path / "token"))
    assert (await specd(*words)).status == 0
    assert seen == ["Authorization: Bearer abc"]
    server.close()
    await server.wait_closed()
    assert (await specd(*words)).status == 3


async def test_an_interrupt_has_the_shell_s_status_and_no_traceback(daemon: Daemon) -> None:
    daemon.trials["x"] = trial("loading", None)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd", "watch", "x", "--socket", str(daemon.socket)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    while not daemon.stream_queries:
        await asyncio.sleep(0.01)
    process.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(30):
            _, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 130
    assert b"the trial goes on" in err
    assert b"specd cancel x" in err
    assert b"Traceback" not in err
    assert all(method == "GET" for method, _, _ in daemon.asked)
