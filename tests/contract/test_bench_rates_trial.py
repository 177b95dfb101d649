"""A whole trial whose plan has rates and a mix of prompt sets: measured, stored, judged, shown by the rate."""

import csv
import io

from tests.rig import Daemon, EmbeddedSite

PLAN = """
[benchmarks.traffic]
levels = [1]
rates = [20, 40]
arrivals = "constant"
repeats = 2
requests = 6
prompts = { quick = 2, chat = 1 }
max_tokens = 8
warmup_requests = 1
"""


async def test_trial_with_rates(embedded_site: EmbeddedSite) -> None:
    async with Daemon(embedded_site, PLAN) as daemon:
        trial = await daemon.submit(benchmark="traffic")
        shown = await daemon.settled(trial)
        assert shown["state"] == "restored", shown["reason"]
        told = daemon.command("show", trial).stdout
        report = daemon.command("report", trial, "--format", "csv").stdout
        levels = await daemon.client.get(f"/v1/trials/{trial}/levels")
    loads = [(1, 0.0), (0, 20.0), (0, 40.0)]
    for side in ("baseline", "candidate"):
        assert [(level["concurrency"], level["rate"]) for level in shown[side]["levels"]] == loads
        assert [level["requests"] for level in shown[side]["levels"]] == [12, 12, 12]
        assert len(levels[side]) == 6
        ids = {sample["prompt_id"].partition("/")[0] for level in levels[side] for sample in level["samples"]}
        assert ids == {"quick", "chat"}
    assert [(level["concurrency"], level["rate"]) for level in shown["comparison"]["levels"]] == loads
    assert "20 requests/s" in told
    assert [(row["concurrency"], row["rate"]) for row in csv.DictReader(io.StringIO(report))] == [
        ("1", "0.0"), ("0", "20.0"), ("0", "40.0"),
    ]  # fmt: skip
