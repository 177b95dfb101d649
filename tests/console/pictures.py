"""The pictures in docs/screenshots, taken anew: `python -m tests.console.pictures docs/screenshots`."""

import asyncio
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from tests.console import story
from tests.console.screen import shows
from tests.console.server import ApiServer
from tui.app import ConsoleApp
from tui.client import ApiClient
from tui.glyphs import UNICODE

_SIZE = (120, 34)
_PICTURES = {"console-loading": (1, "38 of 61"), "console-result": (2, "WORSE")}


async def take(directory: Path) -> None:
    """Write one SVG file a picture."""
    with tempfile.TemporaryDirectory() as place:
        server = ApiServer(Path(place) / "d.sock")
        server.lines = [{"n": n, "text": text} for n, text in enumerate(_log(), start=1)]
        await server.start()
        for name, (row, words) in _PICTURES.items():
            app = ConsoleApp(ApiClient(str(server.socket)), UNICODE, clock=lambda: story.NOW)
            async with app.run_test(size=_SIZE) as pilot:
                await shows(pilot, "max-seqs-64")
                await pilot.press(*["j"] * row, "enter")
                await shows(pilot, words, "outage")
                (directory / f"{name}.svg").write_text(app.export_screenshot(title="specd-tui"))
        await server.stop()


def _log() -> list[str]:
    begun = story.NOW.replace(minute=19, second=10)
    shards = []
    for n in range(1, 39):
        at = (begun + timedelta(seconds=18.5 * n)).strftime("%H:%M:%S")
        shards.append(f"(Worker_TP{n % 8}) INFO {at} [weight_utils.py] {n} of 61 shards")
    return ["INFO 12:19:04 vLLM API server version 0.23.0", "INFO 12:19:09 Resolved DeepseekV3ForCausalLM", *shards]


if __name__ == "__main__":
    os.environ["TZ"] = "UTC"
    time.tzset()
    asyncio.run(take(Path(sys.argv[1])))
