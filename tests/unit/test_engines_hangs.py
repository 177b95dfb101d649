"""What a hang is told as: by the log's last own words first, by the stage else; no stage is left without a word."""

import pytest

from specd.engines.engine import Stage
from specd.engines.hangs import hang_hint
from tests.corpus import records


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("(Worker_TP0 pid=5) INFO 12-01 10:00:00 [pynccl.py:103] vLLM is using nccl==2.27.3", "NCCL waits"),
        ("(Worker_TP3 pid=5) INFO 12-01 10:00:00 [parallel_state.py:1] world_size=8 rank=3 local_rank=3", "NCCL waits"),
        ("gpu1:5:5 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>", "NCCL_SOCKET_IFNAME"),
        ("Fetching 163 files:   3%|3         | 5/163 [00:41<12:00]", "download"),
        ("(EngineCore pid=7) 2026-03-08 16:44:29,692 - INFO - autotuner.py:262 - flashinfer.jit: [Autotuner]", "tunes"),
    ],
)
def test_the_last_words_tell_more_than_the_stage(line: str, words: str) -> None:
    assert words in hang_hint(Stage.CONFIG, ("something before", line))
    assert words not in hang_hint(Stage.WEIGHTS, (line, *["something after"] * 3))


def test_each_stage_has_a_hint_of_its_own() -> None:
    hints = [hang_hint(stage, ()) for stage in ("", *Stage.ORDER)]
    assert len(set(hints)) == len(hints)
    assert hang_hint("another", ()) == "see the candidate's log"


def test_a_real_start_that_stops_in_its_weights_is_told_as_that() -> None:
    lines = [text for _, text in records("start-gpu-ngram.log")]
    last = max(number for number, text in enumerate(lines) if "Loading drafter model" in text)
    assert "disk" in hang_hint(Stage.WEIGHTS, tuple(lines[: last + 1]))
