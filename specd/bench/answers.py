"""Whether the candidate gives the baseline's answers: greedy ones compared word by word through their digests.

No engine answers a greedy request always alike (batches change the order of sums), so how often the candidate's answers
differ says something only beside how often the baseline's own do, from one of its runs to the next. Only requests with
equal load, repeat and prompt are compared: their texts are equal to the last letter. A sample's digests hold no text.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specd.bench.plan import Level, LevelDone, Sample
from specd.bench.summary import percentile

__all__ = ["Equality", "digests", "equality", "rare"]

_WORDS = 64
_WORD_HEX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """Of `compared` answers of the candidate `differ` are not the baseline's, from word `first_word` on (median,
    counted from 0, None where it is later than the digests tell); `own_...` is the baseline against itself."""

    compared: int
    differ: int
    first_word: float | None = None
    own_compared: int = 0
    own_differ: int = 0
    own_first_word: float | None = None

    @property
    def excess(self) -> float:
        """By how much more of its answers the candidate differs than the baseline does from itself, as a share."""
        return self.differ / self.compared - (self.own_differ / self.own_compared if self.own_compared else 0.0)

    def is_more(self, significance: float) -> bool:
        """True when the candidate differs more often than chance alone makes of the baseline's own divergence."""
        total = self.compared + self.own_compared
        return bool(self.own_compared) and (
            rare(self.differ, self.compared, self.differ + self.own_differ, total) < significance
        )

    def words(self) -> str:
        """Return the finding as a sentence without its full stop."""
        where = f", first at word {self.first_word:.0f} (median)" if self.first_word is not None else ""
        found = f"{self.differ} of {self.compared} greedy answers are not the baseline's{where}"
        if not self.own_compared:
            return f"{found}; how often its own differ was not measured"
        return f"{found}; of its own, measured again, {self.own_differ} of {self.own_compared} differ"

    def as_json(self) -> dict[str, Any]:
        """Return what is stored and shown."""
        return asdict(self)


def digests(text: str) -> tuple[str, str]:
    """Return a digest of a whole text, and 4 hex digits for each of its first 64 words."""
    words = text.split(maxsplit=_WORDS)[:_WORDS]
    parts = [hashlib.blake2b(word.encode(errors="replace"), digest_size=_WORD_HEX // 2).hexdigest() for word in words]
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest(), "".join(parts)


def equality(
    baseline: Sequence[LevelDone], candidate: Sequence[LevelDone], again: Sequence[LevelDone] = ()
) -> Equality | None:
    """Compare the answers that have digests; None where there are none, as with a temperature."""
    before = _answers(baseline)
    compared, differ, first = _differences(before, _answers(candidate))
    if not compared:
        return None
    own = _differences(before, _answers(again))
    return Equality(
        compared=compared, differ=differ, first_word=first, own_compared=own[0], own_differ=own[1],
        own_first_word=own[2],
    )  # fmt: skip


def rare(hits: int, drawn: int, all_hits: int, total: int) -> float:
    """Return the chance of at least so many hits among the drawn, of all hits in the total (Fisher's exact test)."""
    most = min(drawn, all_hits)
    ways = sum(math.comb(all_hits, n) * math.comb(total - all_hits, drawn - n) for n in range(hits, most + 1))
    return ways / math.comb(total, drawn)


def _answers(levels: Sequence[LevelDone]) -> dict[tuple[Level, str], Sample]:
    return {
        (level.level, sample.prompt_id): sample
        for level in levels
        for sample in level.samples
        if sample.text_digest and not sample.error
    }


def _differences(
    one: Mapping[tuple[Level, str], Sample], two: Mapping[tuple[Level, str], Sample]
) -> tuple[int, int, float | None]:
    shared = [(one[key], two[key]) for key in one if key in two]
    others = [(here.text_words, there.text_words) for here, there in shared if here.text_digest != there.text_digest]
    places = [place for place in (_first(*pair) for pair in others) if place is not None]
    return len(shared), len(others), percentile(places, 0.5) if places else None


def _first(one: str, two: str) -> int | None:
    """Return the first word that differs, None if it is beyond the words kept."""
    for at in range(0, min(len(one), len(two)), _WORD_HEX):
        if one[at : at + _WORD_HEX] != two[at : at + _WORD_HEX]:
            return at // _WORD_HEX
    shorter = min(len(one), len(two)) // _WORD_HEX
    return shorter if len(one) != len(two) else None
