"""How a serving rehearsal engine ends: by order, by the death of its engine, by kill -9."""

import concurrent.futures
import os
import signal
import time
from pathlib import Path

import pytest

from tests.contract.rehearsal import is_alive, started, wait_until


def test_sigterm_while_streaming(tmp_path: Path) -> None:
    with started(tmp_path) as engine:
        engine.wait_ready()
        children = engine.children()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            future = pool.submit(engine.stream, {"max_tokens": 5000, "ignore_eos": True})
            wait_until(lambda: engine.metric("vllm:num_requests_running") == 1, 5)
            began = time.monotonic()
            engine.process.terminate()
            assert engine.wait_exit() == 0
            assert time.monotonic() - began < 0.5
            events = [event for _, event in future.result()]
        assert events[-1] == "[DONE]"
        assert events[-2]["error"]["code"] == 500
        assert not any(map(is_alive, children))
        log = engine.log()
        assert "[shutdown] API server: shutdown triggered" in log
        assert "AsyncLLM output_handler failed." in log
        assert "EngineDeadError: EngineCore encountered an issue." in log
        assert engine.errors().count("INFO:     Application shutdown complete.\n") == 1


def test_shutdown_timeout_drains(tmp_path: Path) -> None:
    with started(tmp_path, "--shutdown-timeout", "5") as engine:
        engine.wait_ready()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            future = pool.submit(engine.stream, {"max_tokens": 200, "ignore_eos": True})
            wait_until(lambda: engine.metric("vllm:num_requests_running") == 1, 5)
            engine.process.terminate()
            events = [event for _, event in future.result()]
            assert engine.wait_exit() == 0
        assert events[-1] == "[DONE]"
        assert events[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_of_engine_or_worker(tmp_path: Path, victim: int) -> None:
    with started(tmp_path) as engine:
        engine.wait_ready()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            future = pool.submit(engine.stream, {"max_tokens": 5000, "ignore_eos": True})
            wait_until(lambda: engine.metric("vllm:num_requests_running") == 1, 5)
            children = engine.children()
            os.kill(children[victim], signal.SIGKILL)
            events = [event for _, event in future.result()]
            assert engine.request("/health")[0] == 503
        assert (events[-2]["error"]["code"], events[-1]) == (500, "[DONE]")
        assert engine.wait_exit(3) == 0
        wait_until(lambda: not any(map(is_alive, children)), 2)


def test_kill_9_of_the_api_process_takes_the_children_along(tmp_path: Path) -> None:
    with started(tmp_path) as engine:
        engine.wait_ready()
        children = engine.children()
        engine.process.kill()
        engine.wait_exit()
        wait_until(lambda: not any(map(is_alive, children)), 2)
