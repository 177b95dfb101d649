"""Every class that a trial can end with is in the list for people, and memory trouble says for what."""

import re
from pathlib import Path

import pytest

from specd.engines import by_name
from specd.engines.llamacpp import LlamaCpp
from specd.engines.sglang import Sglang
from specd.engines.vllm.failures import FAILURES

REPO = Path(__file__).parents[2]


def test_every_class_is_in_the_list() -> None:
    listed = set(re.findall(r"`([a-z-]+)`", (REPO / "docs/failures.md").read_text()))
    used = {rule.kind for rule in (*FAILURES, *Sglang.rules.failures, *LlamaCpp.rules.failures)}
    for path in (REPO / "specd").rglob("*.py"):
        text = path.read_text()
        used |= set(re.findall(r'Failure\(\s*kind="([a-z-]+)"', text))
        used |= set(re.findall(r'Step\.failed\(\s*"([a-z-]+)"', text))
        used |= set(re.findall(r'_of\(\s*log,\s*"([a-z-]+)"', text))
    assert len(used) > 15
    assert used <= listed, f"add to docs/failures.md: {used - listed}"


OOM = "(EngineCore pid=7) ERROR 12-01 10:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"


@pytest.mark.parametrize(
    ("line", "words", "hint"),
    [
        ("Starting to load model /m...", "while the weights were loaded", "do not fit"),
        ("Starting torch.compile", "compiled and measured", "max-num-batched-tokens"),
        (
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|#| 1/10",
            "CUDA graphs were captured",
            "capture fewer",
        ),
        ("", "GPU memory ran out", "lower --gpu-memory-utilization"),
    ],
)
def test_memory_trouble_says_for_what(line: str, words: str, hint: str) -> None:
    reader = by_name("vllm").reader()
    if line:
        reader.feed(f"(EngineCore pid=7) INFO 12-01 09:59:00 [x.py:1] {line}" if "%" not in line else line)
    reader.feed("(EngineCore pid=7) ERROR 12-01 10:00:00 [core.py:1] EngineCore failed to start.")
    reader.feed("(EngineCore pid=7) ERROR 12-01 10:00:00 [core.py:1] Traceback (most recent call last):")
    reader.feed(OOM)
    failure = reader.failure()
    assert failure is not None
    assert failure.kind == "gpu-memory"
    assert words in failure.sentence
    assert hint in failure.hint
