"""How long a step takes and how many drafted tokens are accepted.

One engine step decodes all running requests together. With n tokens verified in the step (1 for a request without a
draft, k+1 for one with a draft of k tokens) and p prompt tokens prefilled in it:

    step_ms = base_step_ms * min(1 + slope * (n - 1), saturation) + prefill_ms_per_token * p + draft_ms_per_token * d

`slope` is what one more token in a step costs, relative to a step of one. A mixture of experts pays a lot, because
each further token wakes experts of its own, until all are awake (`saturation`). With the defaults a step of 13.6 ms
grows by a factor of 2.05 when it verifies 6 tokens; an n-gram draft of 5 found in 60 % of the steps and accepted with
0.40 a position yields 1.4 tokens a step: 9 to 26 % slower than no speculation at all.
d is the number of drafted tokens (it costs time where a draft model runs, nothing for n-gram).

A draft is accepted up to its first wrong token: position i with the i-th rate. The rate of a prompt is the script's
rate times 1 ± acceptance_spread, so prompts differ. Every random decision is a hash of (seed, prompt, token position),
so a run repeats exactly whatever else runs beside it.
"""

from __future__ import annotations

from typing import Any

from .script import Script
from .speculative import Speculative

_MASK = (1 << 64) - 1
_DEFAULT_RATE = {"ngram": 0.40, "ngram_gpu": 0.40, "suffix": 0.45, "eagle": 0.65, "eagle3": 0.72, "mtp": 0.75}
_DEFAULT_DRAFT_MS = {"ngram": 0.0, "ngram_gpu": 0.0, "suffix": 0.0, "eagle": 0.4, "eagle3": 0.4, "mtp": 0.6}
_OTHER_RATE = 0.60
_OTHER_DRAFT_MS = 1.2
# Methods that look a draft up may find none; the others always draft.
_LOOK_UP = ("ngram", "ngram_gpu", "suffix")


def mix(*parts: int) -> int:
    """Hash integers to 64 bits (splitmix64 over the parts)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state + part * 0xBF58476D1CE4E5B9 + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def uniform(*parts: int) -> float:
    """Return a number in [0, 1) that depends on the parts alone."""
    return mix(*parts) / (_MASK + 1)


class StepClock:
    """The cost of a step, in seconds."""

    def __init__(self, script: Script, method: str) -> None:
        self._script = script
        draft_ms = script.draft_ms_per_token
        self._draft_ms = _DEFAULT_DRAFT_MS.get(method, _OTHER_DRAFT_MS) if draft_ms < 0 else draft_ms

    def step_s(self, verified: int, prefilled: int, drafted: int, step: int) -> float:
        """Return the length of step number `step` that verifies, prefills and drafts that many tokens."""
        script = self._script
        factor = min(1 + script.slope * max(0, verified - 1), script.saturation)
        noise = 1 + script.step_noise * (2 * uniform(script.seed, step, 7) - 1)
        decode_ms = script.base_step_ms * factor * noise
        extra_ms = script.prefill_ms_per_token * prefilled + self._draft_ms * drafted
        return (decode_ms + extra_ms) / 1000 * script.time_scale


class Acceptance:
    """Which drafts are found and how much of each is accepted."""

    def __init__(self, script: Script, speculative: Speculative) -> None:
        self.draft_length = speculative.num_speculative_tokens
        self._seed = script.seed
        self._spread = script.acceptance_spread
        self._match_rate = script.ngram_match_rate if speculative.method in _LOOK_UP else 1.0
        self._rates = self._expand(script.acceptance, _DEFAULT_RATE.get(speculative.method, _OTHER_RATE))

    def draft(self, prompt_key: int, position: int) -> int:
        """Return how many tokens are drafted at this position: all k or none."""
        return self.draft_length if uniform(self._seed, prompt_key, position, 1) < self._match_rate else 0

    def accepted(self, prompt_key: int, position: int) -> int:
        """Return how many tokens of a full draft are accepted at this position."""
        factor = 1 + self._spread * (2 * uniform(self._seed, prompt_key, 2) - 1)
        for index, rate in enumerate(self._rates):
            # A rate of exactly 0 or 1 is meant exactly; the spread does not touch it.
            limit = rate if rate in (0, 1) else rate * factor
            if uniform(self._seed, prompt_key, position, 3 + index) >= limit:
                return index
        return self.draft_length

    def _expand(self, acceptance: Any, default: float) -> list[float]:
        rates = acceptance if isinstance(acceptance, list) else [default if acceptance is None else acceptance]
        rates = rates or [0.0]
        return [float(rates[min(index, len(rates) - 1)]) for index in range(self.draft_length)]
