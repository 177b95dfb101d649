"""The two installations that trials are timed on: the embedded supervisor here, and a systemd host behind sshd."""

import asyncio
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.rig import EmbeddedSite, RemoteSite, Site
from tests.testhost import TestHost, Unavailable

__all__ = ["SITES", "SiteMissing", "open_site", "spread"]

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


def spread(values: Sequence[float]) -> str:
    """Return median and maximum in words, in ms."""
    return f"median {statistics.median(values) * 1e3:6.0f} ms, most {max(values) * 1e3:6.0f} ms"
