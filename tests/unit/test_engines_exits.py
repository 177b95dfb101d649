"""Why an invocation ended, by the manager's word and the log's."""

import pytest

from specd.engines import by_name
from specd.engines.engine import Failure
from specd.engines.vllm.log import VllmReader
from tests.corpus import records

VLLM = by_name("vllm")


def explain(log: str = "", *, result: str = "exit-code", code: str = "exited", status: int = 1) -> Failure:
    reader = VllmReader()
    if log:
        for _, text in records(log):
            reader.feed(text)
    return VLLM.explain_exit(reader, result=result, code=code, status=status)


@pytest.mark.parametrize(
    ("status", "word"),
    [(200, "working directory"), (203, "can't be executed"), (217, "user"), (226, "namespace"), (243, "credential")],
)
def test_systemd_statuses_are_the_units_fault(status: int, word: str) -> None:
    failure = explain(status=status)
    assert failure.kind == "unit"
    assert word in failure.sentence
    assert str(status) in failure.sentence


@pytest.mark.parametrize(
    ("result", "code", "status", "kind"),
    [
        ("oom-kill", "killed", 9, "host-memory"),
        ("timeout", "killed", 15, "unit"),
        ("start-limit-hit", "", 0, "unit"),
        ("signal", "killed", 9, "killed"),
        ("signal", "killed", 15, "killed"),
        ("core-dump", "dumped", 11, "engine-died"),
        ("signal", "killed", 6, "engine-died"),
        ("exit-code", "exited", 137, "killed"),
        ("exit-code", "exited", 127, "unit"),
        ("exit-code", "exited", 1, "unknown"),
        ("success", "exited", 0, "unexpected-exit"),
        ("", "", 0, "unknown"),
    ],
)
def test_without_a_log(result: str, code: str, status: int, kind: str) -> None:
    assert explain(result=result, code=code, status=status).kind == kind


def test_a_timeout_is_never_the_models_fault() -> None:
    failure = explain("start-cpu-ngram.log", result="timeout", code="killed", status=15)
    assert (failure.kind, "timeout" in failure.sentence) == ("unit", True)


def test_exit_two_names_the_flag() -> None:
    failure = explain("fail-unknown-flag.log", status=2)
    assert (failure.kind, "--no-such-flag" in failure.sentence) == ("bad-argument", True)


def test_status_zero_nobody_asked_for_keeps_its_root_cause() -> None:
    failure = explain("died-worker-killed.log", result="success", status=0)
    assert failure.kind == "unexpected-exit"
    assert "unexpected exit (status 0)" in failure.sentence
    assert "VllmWorker-0 was killed" in failure.sentence
    orderly = explain("stop-while-streaming.log", result="success", status=0)
    assert (orderly.kind, "orderly" in orderly.sentence) == ("unexpected-exit", True)


def test_the_logs_cause_beats_the_status() -> None:
    assert explain("fail-kv-too-small.log").kind == "kv-cache"
    assert explain("fail-port.log").kind == "port"


def test_an_unknown_end_shows_the_last_lines() -> None:
    reader = VllmReader()
    for number in range(50):
        reader.feed(f"line {number}")
    failure = VLLM.explain_exit(reader, result="exit-code", code="exited", status=3)
    assert (failure.kind, failure.lines[-1], len(failure.lines)) == ("unknown", "line 49", 20)


def test_a_container_in_the_way() -> None:
    reader = VllmReader()
    reader.feed('docker: Error response from daemon: Conflict. The name "/vllm" is already in use by container "ab".')
    failure = VLLM.explain_exit(reader, result="exit-code", code="exited", status=125)
    assert (failure.kind, "old container" in failure.sentence) == ("unit", True)
