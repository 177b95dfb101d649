"""The two installations that trials are timed on: the embedded supervisor here, and a systemd host behind sshd."""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.rig import EmbeddedSite, RemoteSite, Site
from tests.testhost import TestHost, Unavailable

__all__ = ["SITES", "SiteMissing", "core_share", "open_site", "spread"]

SITES = ("embedded", "systemd")


class SiteMissing(Exception):
    """This machine can't have that installation; the text says why."""


@asynccontextmanager
async def open_site(name: str) -> AsyncIterator[Site]:
    """Give an installation whose service serves, and take it away; raises SiteMissing."""
    with tempfile.TemporaryDirectory(prefix="specd-bench-") as directory:
        if name == "embedded":
            embedded = await asyncio.to_thread(EmbeddedSite, Path(directory))
            try:
                yield embedded
            finally:
                await asyncio.to_thread(embedded.close)
            return
        if os.getuid() != 0:
            raise SiteMissing("a systemd host behind sshd needs root")
        try:
            host = await asyncio.to_thread(TestHost.create)
        except Unavailable as why:
            raise SiteMissing(str(why)) from why
        try:
            await asyncio.to_thread(host.boot)
            yield await asyncio.to_thread(RemoteSite, Path(directory), host)
        finally:
            await asyncio.to_thread(host.destroy)


def core_share(seconds: float = 0.3) -> float:
    """Return how much of a core a busy loop gets now: well below 1 says that others use this machine too."""
    wall, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - wall < seconds:
        pass
    return (time.process_time() - cpu) / (time.monotonic() - wall)


def spread(values: Sequence[float]) -> str:
    """Return least, median and most in words, in ms."""
    least, middle, most = (round(of(values) * 1e3) for of in (min, statistics.median, max))
    return f"least {least} ms, median {middle} ms, most {most} ms"
