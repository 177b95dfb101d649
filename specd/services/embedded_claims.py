"""Claims of an embedded supervisor's units: files in its directory, written under a lock of the kernel."""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specd.services.claim import Claim, Filed, foremost, next_rank, parsed, written

__all__ = ["look", "release", "take"]


def take(directory: Path, claim: Claim, *, over: bool) -> Claim | None:
    """Take or renew a claim; returns the one in the way. With `over`, that one is removed. Raises OSError."""
    with _locked(directory):
        found = list(_filed(directory, claim.unit))
        own = next((filed for filed, _ in found if filed.claim.installation == claim.installation), None)
        others = [(filed, path) for filed, path in found if filed is not own]
        other = foremost(filed for filed, _ in others)
        rank = next_rank(own, other, take=over)
        if rank is None:
            return other.claim if other else None
        path = _stem(directory, claim.unit, claim.installation)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(written(claim, rank))
        os.replace(fresh, path)
        for _, foreign in others if over else []:
            foreign.unlink()
        return None


def release(directory: Path, unit: str, installation: str) -> None:
    """Give our claim back; one that is not there is fine. Raises OSError."""
    with _locked(directory):
        _stem(directory, unit, installation).unlink(missing_ok=True)


def look(directory: Path, unit: str) -> Claim | None:
    """Return the claim that counts. Raises OSError."""
    first = foremost(filed for filed, _ in _filed(directory, unit))
    return first.claim if first else None


def _stem(directory: Path, unit: str, installation: str) -> Path:
    digest = hashlib.sha256(f"{unit}\0{installation}".encode()).hexdigest()[:16]
    return directory / "claims" / f"{digest}.claim"


def _filed(directory: Path, unit: str) -> Iterator[tuple[Filed, Path]]:
    now = time.time()
    for path in sorted((directory / "claims").glob("*.claim")):
        found = path.stat()
        filed = parsed(path.read_text(), at=found.st_ctime, age_s=now - found.st_mtime)
        if filed is not None and filed.claim.unit == unit:
            yield filed, path


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    place = directory / "claims"
    place.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
