"""Who drives a service: a claim on its host, so that two daemons never try the same one.

Each installation writes a file of its own beside the others', and the standing of the files decides. A claim that has
been renewed (rank 1) stands above one just written (rank 0); of those just written the first one stands; a takeover
writes a rank above all others. So two that come at the same instant see each other, and one of them goes back.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

__all__ = ["Claim", "Filed", "foremost", "next_rank", "parsed", "written"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One installation's claim of a baseline unit; `holder` names it in words, `age_s` counts since its renewal."""

    unit: str
    installation: str
    holder: str
    trial: str
    lease_s: float
    age_s: float = 0.0

    @property
    def is_stale(self) -> bool:
        """True when it was not renewed in time; its trial may go on all the same."""
        return self.age_s > self.lease_s

    @property
    def words(self) -> str:
        """Say who holds it, for which trial, and since when it was not heard of."""
        heard = f"not renewed for {self.age_s:.0f} s, its lease was {self.lease_s:.0f} s" if self.is_stale else "alive"
        return f"{self.holder} for trial {self.trial or '-'} ({heard})"


@dataclass(frozen=True, slots=True)
class Filed:
    """A claim as its file has it: `rank` first decides its standing, then `at`, when the file came to its place."""

    claim: Claim
    rank: int
    at: float


def foremost(filed: Iterable[Filed]) -> Filed | None:
    """Return the claim that counts."""
    return min(filed, key=lambda one: (-one.rank, one.at, one.claim.installation), default=None)


def next_rank(own: Filed | None, other: Filed | None, *, take: bool) -> int | None:
    """Return the rank that our file gets, None when another's claim stands in the way."""
    if other is not None and (own is None or foremost((own, other)) is not own):
        return other.rank + 1 if take else None
    return max(1, own.rank) if own is not None else 0


def written(claim: Claim, rank: int) -> bytes:
    """Return the text of a claim's file."""
    body = {**asdict(claim), "rank": rank}
    del body["age_s"]
    return json.dumps(body).encode() + b"\n"


def parsed(content: str, *, at: float, age_s: float) -> Filed | None:
    """Read a claim's file; None for one that is no claim."""
    try:
        body = json.loads(content)
        claim = Claim(
            unit=str(body["unit"]),
            installation=str(body["installation"]),
            holder=str(body["holder"]),
            trial=str(body["trial"]),
            lease_s=float(body["lease_s"]),
            age_s=max(0.0, age_s),
        )
        return Filed(claim, int(body["rank"]), at)
    except (ValueError, KeyError, TypeError):
        return None
