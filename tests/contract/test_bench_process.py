"""The client as a process: its lines, its end in every case, and where the API key is not."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specd.bench import builtin
from specd.bench.builtin import BuiltinBenchmark
from specd.bench.plan import BenchPlan, Level, LevelDone, Progress, Sample, Target
from specd.bench.wire import decode_item, decode_order, encode_failure, encode_item, encode_order
from specd.errors import BenchError
from tests.contract.odd_server import OddServer, odd_server

PLAN = BenchPlan(
    levels=(1,), repeats=2, requests=3, prompts="quick", max_tokens=16, temperature=0.0, warmup_requests=0,
    first_token_s=5.0, idle_s=5.0, extra_body={"top_p": 0.5},
)  # fmt: skip
KEY = "s3cret-key"
CLIENT = [sys.executable, "-m", "specd.bench.client"]


def target(odd: OddServer) -> Target:
    return Target(base_url=odd.url, model="m", api_key=KEY)


def clients_of(parent: int) -> Iterator[int]:
    """The benchmark clients that a process has started."""
    for entry in Path("/proc").iterdir():
        try:
            if b"specd.bench.client" in (entry / "cmdline").read_bytes():
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[1]) == parent:
                    yield int(entry.name)
        except (OSError, ValueError):
            continue


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def gone(pid: int, within_s: float = 5.0) -> bool:
    end = asyncio.get_running_loop().time() + within_s
    while is_alive(pid):
        if asyncio.get_running_loop().time() > end:
            return False
        await asyncio.sleep(0.02)
    return True


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script in the place of the interpreter that runs the client."""
    path = tmp_path / "client.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(builtin.sys, "executable", str(path))


# -- the wire


def test_order_survives_the_wire() -> None:
    want = Target(base_url="http://h:1", model="m", api_key=KEY, unix_socket="/s", route="tunnel")
    assert decode_order(encode_order(want, PLAN, (Level(1, 1), Level(4, 2)))) == (
        want,
        PLAN,
        (Level(1, 1), Level(4, 2)),
    )


def test_items_survive_the_wire() -> None:
    sample = Sample(concurrency=1, repeat=1, prompt_id="a", started_at=1.5, ttft_ms=2.25, tokens_out=3, error="\u2028ü")
    done = LevelDone(
        level=Level(1, 1), samples=(sample,), wall_s=1.0, metrics_before="a\nb", metrics_after="ü", loop_lag_p99_ms=0.5
    )
    progress = Progress(level=Level(1, 1), done=1, total=2, failed=0, output_tok_s=None)
    for item in (done, progress):
        line = encode_item(item)
        assert line.count(b"\n") == 1
        assert decode_item(line) == item


@pytest.mark.parametrize(
    "line", [b"Traceback\n", b"[]\n", b"{}\n", b'{"type":"level"}\n', b'{"type":"new"}\n', b"null\n"]
)
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises(BenchError, match="benchmark client printed"):
        decode_item(line)


def test_failure_line() -> None:
    with pytest.raises(BenchError, match="no such thing"):
        decode_item(encode_failure("no such thing"))


def test_broken_order_does_not_show_the_key() -> None:
    with pytest.raises(BenchError) as caught:
        decode_order(encode_order(Target(base_url="x", model="m", api_key=KEY), PLAN, ())[:-9])
    assert KEY not in str(caught.value)


# -- a whole measurement


async def test_measure() -> None:
    levels = (Level(1, 1), Level(2, 1), Level(1, 2))
    async with odd_server(lambda request: request.answer()) as odd:
        # Longer than what asyncio takes for a line unless told otherwise.
        odd.page = "# " + "x" * 200_000 + "\nprocess_start_time_seconds 5\n"
        async with BuiltinBenchmark().measure(target(odd), PLAN, levels) as run:
            items = [item async for item in run]
        assert not list(clients_of(os.getpid()))
    done = [item for item in items if isinstance(item, LevelDone)]
    assert tuple(level.level for level in done) == levels
    for level in done:
        assert [bool(sample.error) for sample in level.samples] == [False] * 3
        assert len(level.metrics_after) > 200_000
    assert any(isinstance(item, Progress) for item in items)
    assert {request.body["top_p"] for request in odd.generations} == {0.5}
    assert {request.headers["authorization"] for request in odd.generations} == {f"Bearer {KEY}"}


async def test_key_is_neither_in_arguments_nor_environment() -> None:
    async with (
        odd_server(lambda request: request.answer(words=50, pause_s=0.05)) as odd,
        BuiltinBenchmark().measure(target(odd), PLAN, (Level(1, 1),)) as run,
    ):
        assert isinstance(await anext(run), Progress)
        (pid,) = clients_of(os.getpid())
        shown = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    assert b"specd.bench.client" in shown
    assert KEY.encode() not in shown


async def test_client_is_started_from_this_package_whatever_the_directory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with (
        odd_server(lambda request: request.answer()) as odd,
        BuiltinBenchmark().measure(target(odd), PLAN, (Level(1, 1),)) as run,
    ):
        assert [item async for item in run]


# -- how it ends


async def test_leaving_early_ends_the_client() -> None:
    async with odd_server(lambda request: request.answer(words=1000, pause_s=0.05)) as odd:
        async with BuiltinBenchmark().measure(target(odd), PLAN, (Level(1, 1),)) as run:
            await asyncio.wait_for(_opened(odd), 10)
            (pid,) = clients_of(os.getpid())
        assert not is_alive(pid)
        assert run


async def test_cancelling_ends_the_client() -> None:
    async def measure(odd: OddServer) -> None:
        async with BuiltinBenchmark().measure(target(odd), PLAN, (Level(1, 1),)) as run:
            async for _ in run:
                pass

    async with odd_server(lambda request: request.answer(words=1000, pause_s=0.05)) as odd:
        task = asyncio.create_task(measure(odd))
        await asyncio.wait_for(_opened(odd), 10)
        (pid,) = clients_of(os.getpid())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_alive(pid)


async def test_client_that_ignores_its_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do read line; done < /dev/zero")
    async with BuiltinBenchmark().measure(Target(base_url="x", model="m"), PLAN, (Level(1, 1),)):
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.02)
        pid = int((tmp_path / "pid").read_text())
        assert is_alive(pid)
    assert not is_alive(pid)


async def test_killed_parent_takes_the_client_with_it(tmp_path: Path) -> None:
    async with odd_server(lambda request: request.answer(words=1000, pause_s=0.05)) as odd:
        script = tmp_path / "parent.py"
        script.write_text(
            "import asyncio, sys\n"
            "from specd.bench.builtin import BuiltinBenchmark\n"
            "from specd.bench.wire import decode_order\n"
            "async def main():\n"
            "    async with BuiltinBenchmark().measure(*decode_order(sys.stdin.buffer.readline())) as run:\n"
            "        async for _ in run: pass\n"
            "asyncio.run(main())\n"
        )
        home = {**os.environ, "PYTHONPATH": str(Path(builtin.__file__).parents[2])}
        parent = await asyncio.create_subprocess_exec(
            sys.executable, str(script), stdin=asyncio.subprocess.PIPE, env=home
        )
        assert parent.stdin is not None
        parent.stdin.write(encode_order(target(odd), PLAN, (Level(1, 1),)))
        await asyncio.wait_for(_opened(odd), 15)
        (pid,) = clients_of(parent.pid)
        parent.kill()
        await parent.wait()
        assert await gone(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_the_client(number: signal.Signals) -> None:
    async with odd_server(lambda request: request.answer(words=1000, pause_s=0.05)) as odd:
        process = await _client(encode_order(target(odd), PLAN, (Level(1, 1),)))
        await asyncio.wait_for(_opened(odd), 10)
        process.send_signal(number)
        out, err = await _rest(process)
        assert (process.returncode, err) == (3, b"")
        assert b"final" not in out


async def test_reader_that_is_gone_ends_the_client() -> None:
    async with odd_server(lambda request: request.answer(words=1000, pause_s=0.05)) as odd:
        read_end, write_end = os.pipe()
        process = await asyncio.create_subprocess_exec(*CLIENT, stdin=asyncio.subprocess.PIPE, stdout=write_end)
        os.close(write_end)
        assert process.stdin is not None
        process.stdin.write(encode_order(target(odd), PLAN, (Level(1, 1),)))
        await asyncio.wait_for(_opened(odd), 10)
        os.close(read_end)
        assert await asyncio.wait_for(process.wait(), 10) == 3
        process.stdin.close()


async def test_finished_client_has_status_0() -> None:
    async with odd_server(lambda request: request.answer()) as odd:
        process = await _client(encode_order(target(odd), PLAN, (Level(1, 1),)))
        out, err = await _rest(process)
    assert (process.returncode, err) == (0, b"")
    assert json.loads(out.splitlines()[-1]) == {"type": "final"}


# -- what it can't do


async def test_bad_order_is_status_2() -> None:
    process = await _client(b"nonsense\n")
    out, err = await _rest(process)
    assert (process.returncode, err) == (2, b"")
    assert json.loads(out)["type"] == "failed"


async def test_no_pipes_is_status_2_in_words() -> None:
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *CLIENT, stdin=nowhere, stdout=nowhere, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert (process.returncode, err.count(b"\n")) == (2, 1)
    assert b"have to be pipes" in err


async def test_prompt_set_that_is_not_there() -> None:
    plan = replace(PLAN, prompts="./nosuch.jsonl")
    with pytest.raises(BenchError, match=r"can't read the prompt set nosuch\.jsonl: No such file"):
        await _measure(Target(base_url="http://127.0.0.1:9", model="m"), plan)


async def test_server_that_is_not_there() -> None:
    async with odd_server(lambda request: request.answer()) as odd:
        url = odd.url
    with pytest.raises(BenchError, match="does not answer the benchmark's first request: no answer"):
        await _measure(Target(base_url=url, model="m"), PLAN)


async def test_garbage_from_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "echo garbage")
    with pytest.raises(BenchError, match="printed what we can't read: b'garbage"):
        await _measure(Target(base_url="x", model="m"), PLAN)


async def test_client_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "printf 'one\\033[31m\\ntwo' >&2; exit 7")
    with pytest.raises(BenchError, match=r"ended early with status 7: one.\[31m two$"):
        await _measure(Target(base_url="x", model="m"), PLAN)


async def test_client_that_ends_well_but_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "exit 0")
    with pytest.raises(BenchError, match=r"ended early with status 0$"):
        await _measure(Target(base_url="x", model="m"), PLAN)


async def test_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin.sys, "executable", "/nonexistent/python")
    with pytest.raises(BenchError, match="can't start the benchmark client"):
        await _measure(Target(base_url="x", model="m"), PLAN)


async def _measure(target: Target, plan: BenchPlan) -> None:
    async with BuiltinBenchmark().measure(target, plan, (Level(1, 1),)) as run:
        async for _ in run:
            pass


async def _opened(odd: OddServer) -> None:
    """Wait until the probe is over or a request is being answered."""
    while not odd.open_now:
        await asyncio.sleep(0.02)


async def _client(order: bytes) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*CLIENT, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    process.stdin.write(order)
    return process


async def _rest(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Read what is left without closing stdin, which would end the client too."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(10):
        out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
        await process.wait()
    assert process.stdin is not None
    process.stdin.close()
    return out, err
