"""Prompts of a wanted length, for servers of which only the load matters; their text means nothing."""

import random
import re
from collections.abc import Sequence

from specd.bench.prompts.prompt import Prompt
from specd.errors import BenchError

__all__ = ["synthetic"]

_COUNT = 64
# Short, common words: with a blank before them nearly each is one token in the vocabularies of today's models.
_WORD = re.compile(r"\b[a-z]{3,7}\b")
_TASK = "Continue this list of words in the same manner, for as long as you can:\n\n"
_TASK_TOKENS = 18


def synthetic(low: int, high: int, source: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Return prompts of about `low` to `high` tokens, evenly spread; what they really had is in each sample."""
    if not 1 <= low <= high:
        raise BenchError(f"synthetic:{low}-{high}: lengths must grow and be at least 1")
    words = sorted({word for prompt in source for word in _WORD.findall(prompt.text)})
    rng = random.Random(f"{low}-{high}")
    step = (high - low) / (_COUNT - 1)
    found = []
    for number in range(_COUNT):
        count = max(1, round(low + step * number) - _TASK_TOKENS)
        text = _TASK + " ".join(rng.choice(words) for _ in range(count))
        found.append(Prompt(f"synthetic-{number + 1:02}", "synthetic", ({"role": "user", "content": text},)))
    return tuple(found)
