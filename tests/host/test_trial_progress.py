"""Progress moves while the engine is silent: in a journal a bar of carriage returns is one record, at its end."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import HostFactory
from tests.rig import SCRIPT, Daemon, RemoteSite

pytestmark = pytest.mark.host


async def test_a_bar_of_redraws_and_a_silent_load_show_progress_before_their_line(
    make_host: HostFactory, tmp_path: Path
) -> None:
    script = {
        **SCRIPT,
        "time_scale": 1.0,
        "bar": "cr",
        "silent_loading": True,
        "read_mib": 256,
        "stages": {"weights": 4.0, "capture": 4.0},
        "piecewise_captures": 10,
        "cpu_share": 0.3,
    }
    site = RemoteSite(tmp_path, make_host(), script=script)
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, "ready")
        events = (await daemon.client.get("/v1/events.json", since=0, limit=10000, trial=trial))["events"]
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        await daemon.settled(trial)
        log = (await daemon.client.get(f"/v1/trials/{trial}/log", after=0, limit=10000))["lines"]
    moving = [e for e in events if e["type"] == "StageProgressed" and e["state"] in {"loading", "cudagraph-compile"}]
    for stage in ("weights", "capture"):
        steps = [event for event in moving if event["stage"] == stage]
        fractions = [e["fraction"] for e in steps if e["fraction"] is not None]
        assert len(fractions) >= 3, (stage, steps)
        assert all(a <= b for a, b in pairwise(fractions)), (stage, fractions)
        assert fractions[-1] > fractions[0], (stage, fractions)
        assert all(e["source"] for e in steps), steps
        assert any(e["eta_s"] is not None for e in steps), steps
    bars = [line for line in log if "Capturing CUDA graphs" in line["text"] and "\r" in line["text"]]
    assert bars, "the bar did not arrive as one record with its redraws"
