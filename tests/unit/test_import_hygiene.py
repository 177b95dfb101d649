"""What a module really pulls in, deferred imports included; the static contracts can't see those."""

import subprocess
import sys

import pytest

_PROBE = "import sys; import {module}; print(*sorted(n for n in {names!r} if n in sys.modules))"


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("states.table", ["asyncio", "sqlite3", "transitions", "specd", "tui"]),
        ("states.wire", ["asyncio", "sqlite3", "transitions", "aiohttp", "specd", "tui"]),
        ("specd.__main__", ["aiohttp", "asyncssh", "textual", "sqlite3", "transitions"]),
        ("specd.daemon", ["textual", "tui"]),
        ("specd.rehearsal.__main__", ["aiohttp", "asyncssh", "structlog", "states"]),
        ("specd.supervisor.__main__", ["aiohttp", "asyncssh", "structlog"]),
        ("specd.bench.client", ["asyncssh", "textual", "transitions"]),
    ],
)
def test_a_module_pulls_in_nothing_it_should_not(module: str, forbidden: list[str]) -> None:
    code = _PROBE.format(module=module, names=forbidden)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []
