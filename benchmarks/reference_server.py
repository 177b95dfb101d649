"""A server whose token times are scripted to the millisecond: the rehearsal engine, started for one measurement."""

import asyncio
import json
import os
import socket
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

_ROOT = str(Path(__file__).resolve().parents[1])
_START_S = 30.0
_STAGES = ("import", "config", "engine", "weights", "compile", "capture", "startup")


def free_port() -> int:
    """Return a port of the loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@asynccontextmanager
async def reference_server(script: dict[str, Any], *flags: str) -> AsyncIterator[str]:
    """Run the engine with a script (see specd/rehearsal/script.py) and return its URL once it answers."""
    port = free_port()
    whole = {"model_must_exist": False, "stages": dict.fromkeys(_STAGES, 0), "read_mib": 0, "weights_mib": 0, **script}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "specd.rehearsal", "serve", "m", "--host", "127.0.0.1", "--port", str(port),
        "--disable-uvicorn-access-log", *flags,
        env={**os.environ, "PYTHONPATH": _ROOT, "SPECD_REHEARSAL": json.dumps(whole)},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(_START_S):
            while not await asyncio.to_thread(_is_healthy, url):
                if process.returncode is not None:
                    raise RuntimeError(f"the rehearsal engine ended with status {process.returncode}")
                await asyncio.sleep(0.05)
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10)
        finally:
            if process.returncode is None:
                process.kill()


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
