"""Claims of a systemd host: small files in the runtime directory of units, which a reboot empties."""

import hashlib
import re

from specd.services.claim import Claim, Filed, foremost, next_rank, parsed, written
from specd.services.systemd.bus import check_unit_name
from specd.services.systemd.scope import Scope

__all__ = ["Claims"]

_ODD = re.compile(r"[^A-Za-z0-9_.-]")
# For each claim of a unit: its path, when it came to its place, its age by this host's clock, its text.
_LIST_SCRIPT = """\
now=$(date +%s.%N)
for file in "$1".*.claim; do
  [ -f "$file" ] || continue
  printf '%s\\0%s\\0%s\\0%s\\0' "$file" "$(stat -c %.9Z -- "$file")" "$(stat -c %.9Y -- "$file")" "$now"
  cat -- "$file"
  printf '\\0'
done; :"""


class Claims:
    """Takes, renews, reads and gives back claims in one scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def take(self, claim: Claim, *, take: bool) -> Claim | None:
        """Take or renew a claim; returns the one in the way. With `take`, that one is removed."""
        stem = await self._stem(claim.unit)
        own_path = f"{stem}.{_safe(claim.installation)}.claim"
        own, others = await self._look(stem, claim.installation)
        other = foremost(filed for filed, _ in others)
        rank = next_rank(own, other, take=take)
        if rank is None:
            if own is not None:
                await self._scope.remove(own_path)
            return other.claim if other else None
        await self._scope.make_runtime_unit_dir()
        await self._scope.write(own_path, written(claim, rank))
        if take:
            for _, path in others:
                await self._scope.remove(path)
            return None
        if rank > 0:
            return None
        own, others = await self._look(stem, claim.installation)
        first = foremost(filter(None, (own, *(filed for filed, _ in others))))
        if first is None or first.claim.installation == claim.installation:
            return None
        await self._scope.remove(own_path)
        return first.claim

    async def release(self, unit: str, installation: str) -> None:
        """Give our claim back; one that is not there is fine."""
        stem = await self._stem(unit)
        own, _ = await self._look(stem, installation)
        if own is not None:
            await self._scope.remove(f"{stem}.{_safe(installation)}.claim")

    async def look(self, unit: str) -> Claim | None:
        """Return the claim that counts."""
        _, all_of_them = await self._look(await self._stem(unit), "")
        first = foremost(filed for filed, _ in all_of_them)
        return first.claim if first else None

    async def _stem(self, unit: str) -> str:
        """Return the beginning of the paths of a unit's claims; units whose names differ have different ones."""
        unit = check_unit_name(unit)
        digest = hashlib.sha256(unit.encode()).hexdigest()[:8]
        return f"{await self._scope.runtime_unit_dir()}/specd-{_safe(unit)}-{digest}"

    async def _look(self, stem: str, installation: str) -> tuple[Filed | None, list[tuple[Filed, str]]]:
        done = await self._scope.script(_LIST_SCRIPT, stem)
        fields = done.text.split("\0")
        own: Filed | None = None
        others: list[tuple[Filed, str]] = []
        for path, at, renewed, now, content in zip(*(fields[n::5] for n in range(5)), strict=False):
            filed = parsed(content, at=float(at), age_s=float(now) - float(renewed))
            if filed is None:
                continue
            if filed.claim.installation == installation:
                own = filed
            else:
                others.append((filed, path))
        return own, others


def _safe(name: str) -> str:
    return _ODD.sub("_", name)[:80]
