"""The sites that a long run plays on, each kind used again until something went wrong there."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rig import EmbeddedSite, RemoteSite, Site, SmallDisk
from tests.testhost import TestHost

__all__ = ["FAILURES", "Place", "Places"]

FAILURES = (AssertionError, TimeoutError, OSError, RuntimeError)
"""What a trial that did not hold raises."""


@dataclass(frozen=True, slots=True)
class Place:
    """A site and, where this user may mount one, the small disk that the daemon beside it keeps its state on."""

    site: Site
    disk: SmallDisk | None
    close_site: Callable[[], None]

    def close(self) -> None:
        """End the site; its files stay."""
        self.close_site()
        if self.disk is not None:
            self.disk.close()


def open_place(kind: str, directory: Path) -> Place:
    """Return a place of a kind, `embedded` or `systemd`, whose baseline serves."""
    directory.mkdir(exist_ok=True)
    disk = None
    with contextlib.suppress(OSError):
        disk = SmallDisk(directory / "state")
    if kind == "embedded":
        embedded = EmbeddedSite(directory)
        return Place(embedded, disk, embedded.close)
    host = TestHost.create()
    host.boot()
    return Place(RemoteSite(directory, host), disk, host.destroy)


class Places:
    """A place of each kind asked for; a context that ends them all."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="chaos-"))
        self._count = 0
        self._places: dict[str, Place] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name in list(self._places):
            self.drop(name, keep_files=False)

    def place(self, kind: str) -> Place:
        """Return the place of a kind."""
        if kind not in self._places:
            self._count += 1
            self._places[kind] = open_place(kind, self._directory / f"{kind}-{self._count}")
        return self._places[kind]

    def drop(self, kind: str, *, keep_files: bool) -> None:
        """End a place."""
        place = self._places.pop(kind)
        if keep_files:
            kept = place.site.directory / "state-as-it-was"
            with contextlib.suppress(OSError):
                shutil.copytree(place.site.directory / "state", kept)
        place.close()
        if not keep_files:
            shutil.rmtree(place.site.directory, ignore_errors=True)
