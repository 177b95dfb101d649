"""What a daemon says of two services and their trials at one moment, as its API has it; times are fixed."""

from datetime import UTC, datetime
from typing import Any

NOW = datetime(2026, 3, 1, 12, 31, 4, tzinfo=UTC)
LOADING = "260301-k7mwp"
WORSE = "260301-a2xqd"
FAILED = "260228-t9pzn"
KEPT = "260227-h4cve"
EAGLE = {"speculative-config": {"method": "eagle3", "model": "/models/kimi-eagle3", "num_speculative_tokens": 2}}
FLAGS = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}}


def _brief(trial: str, name: str, service: str, state: str, created: str, updated: str, **more: Any) -> dict[str, Any]:
    return {
        "id": trial,
        "name": name,
        "service": service,
        "host": {"kimi": "gpu1", "qwen": "gpu2"}[service],
        "state": state,
        "outcome": None,
        "reason": "",
        "created_at": created,
        "updated_at": updated,
        "progress": None,
        **more,
    }


def briefs() -> list[dict[str, Any]]:
    """Return the trials as the list shows them, newest first."""
    progress = {"state": "loading", "stage": "weights", "fraction": 0.62, "source": "journal", "eta_s": 412.0}
    return [
        _brief("260301-q1aaa", "mtp-1", "qwen", "queued", "2026-03-01T12:20:00.000Z", "2026-03-01T12:20:00.000Z"),
        _brief(
            LOADING,
            "eagle3-k2",
            "kimi",
            "loading",
            "2026-03-01T12:09:00.000Z",
            "2026-03-01T12:19:00.000Z",
            progress=progress,
        ),
        _brief(
            WORSE,
            "ngram-5-4",
            "kimi",
            "restored",
            "2026-03-01T08:00:00.000Z",
            "2026-03-01T09:41:10.000Z",
            outcome="worse",
            reason="12.4 % slower at concurrency 1, and the interval lies outside the margin",
        ),
        _brief(
            FAILED,
            "draft-0.6b",
            "kimi",
            "restored",
            "2026-02-28T20:00:00.000Z",
            "2026-02-28T20:44:00.000Z",
            outcome="failed",
            reason="the GPU memory does not suffice for the KV cache",
        ),
        _brief(
            KEPT,
            "max-seqs-64",
            "qwen",
            "kept",
            "2026-02-27T10:00:00.000Z",
            "2026-02-27T11:00:00.000Z",
            outcome="better",
            reason="output at concurrency 8 is 7.9 % faster",
        ),
    ]


def services() -> list[dict[str, Any]]:
    """Return the services as the API shows them."""
    link = {"connected": True, "since_contact_s": 1.2, "why_down": ""}
    return [
        {
            "name": "kimi",
            "host": "gpu1",
            "unit": "vllm-kimi.service",
            "serving": "nothing yet",
            "trial": LOADING,
            "state": "loading",
            "guard": {"state": "armed", "until": "2026-03-01T12:45:04.000Z", "lease_s": 900},
            "expected_outage_s": 3780.0,
            "link": link,
        },
        {
            "name": "qwen",
            "host": "gpu2",
            "unit": "vllm-qwen.service",
            "serving": "the candidate of max-seqs-64, by decision",
            "trial": KEPT,
            "state": "kept",
            "guard": {"state": "disarmed", "at": "2026-02-27T11:00:00.000Z"},
            "expected_outage_s": None,
            "link": link,
        },
    ]


def _steps(*steps: tuple[str, str, str, str]) -> list[dict[str, str]]:
    return [dict(zip(("state", "trigger", "at", "cause"), step, strict=True)) for step in steps]


def _level(concurrency: int, tok_s: float, tpot: float, ttft: float, **more: Any) -> dict[str, Any]:
    spread = {"mean": tpot, "p95": tpot * 1.2}
    return {
        "concurrency": concurrency,
        "repeats": 3,
        "requests": 36,
        "failed": 0,
        "error_rate": 0.0,
        "output_tok_s": tok_s,
        "tpot_ms": {"median": tpot, **spread},
        "ttft_ms": {"median": ttft, "mean": ttft, "p95": ttft * 1.4},
        **more,
    }


def _checks() -> list[dict[str, str]]:
    names = ("unit.bytes", "unit.reloaded", "argv.equal", "env.equal", "model.exists", "engine.accepts", "port.free")
    passed = [{"name": name, "status": "passed", "evidence": "as intended", "fix": ""} for name in names]
    unchecked = {
        "name": "gpu.memory",
        "status": "unchecked",
        "evidence": "nvidia-smi is not on this host",
        "fix": "install it, or watch the release by hand",
    }
    return [*passed, unchecked]


def whole(trial: str) -> dict[str, Any]:
    """Return one trial as `show --json` shows it."""
    row = next(brief for brief in briefs() if brief["id"] == trial)
    base: dict[str, Any] = {
        **row,
        "class": None,
        "failure": None,
        "serving": "the baseline vllm-kimi.service",
        "deadline_at": None,
        "history": [],
        "changes": {"flags": FLAGS, "env": {"VLLM_ATTENTION_BACKEND": "TRITON_MLA", "HF_TOKEN": "hf_do_not_show"}},
        "baseline": {"levels": []},
        "candidate": {"levels": []},
        "comparison": None,
        "guard": None,
        "checks": [],
        "note": "",
        "rehearsal": False,
    }
    return {**base, **{LOADING: _loading, WORSE: _worse, FAILED: _failed}.get(trial, dict)()}


def _loading() -> dict[str, Any]:
    return {
        "changes": {"flags": EAGLE, "env": {"VLLM_ATTENTION_BACKEND": "TRITON_MLA", "HF_TOKEN": "hf_do_not_show"}},
        "serving": "nothing yet",
        "deadline_at": "2026-03-01T13:49:00.000Z",
        "expected_s": {"loading": 1110.0, "cudagraph-compile": 340.0, "ready": 12.0, "benchmark": 540.0},
        "history": _steps(
            ("baseline", "start", "2026-03-01T12:09:00.100Z", "the service is free"),
            ("write-unit", "baseline-measured", "2026-03-01T12:17:30.100Z", ""),
            ("verify", "unit-written", "2026-03-01T12:17:30.500Z", ""),
            ("restart", "verified", "2026-03-01T12:17:37.000Z", ""),
            ("loading", "candidate-started", "2026-03-01T12:19:00.000Z", ""),
        ),
        "baseline": {"levels": [_level(1, 73.5, 13.6, 212.0), _level(8, 402.0, 19.1, 388.0)]},
        "guard": {"state": "armed", "until": "2026-03-01T12:45:04.000Z", "lease_s": 900},
        "checks": _checks(),
        "note": "does EAGLE-3 pay where n-gram did not?",
    }


def _worse() -> dict[str, Any]:
    slower = "12.4 % slower at concurrency 1, and the interval lies outside the margin"
    return {
        "history": _steps(
            ("baseline", "start", "2026-03-01T08:00:00.100Z", "the service is free"),
            ("write-unit", "baseline-measured", "2026-03-01T08:08:30.100Z", ""),
            ("verify", "unit-written", "2026-03-01T08:08:30.500Z", ""),
            ("restart", "verified", "2026-03-01T08:08:37.000Z", ""),
            ("loading", "candidate-started", "2026-03-01T08:10:02.000Z", ""),
            ("cudagraph-compile", "weights-loaded", "2026-03-01T08:31:02.000Z", ""),
            ("ready", "engine-up", "2026-03-01T08:37:40.000Z", ""),
            ("benchmark", "token-seen", "2026-03-01T08:37:52.000Z", ""),
            ("rollback", "restore", "2026-03-01T09:10:52.000Z", slower),
            ("restored", "restored", "2026-03-01T09:41:10.000Z", "the baseline answered"),
        ),
        "baseline": {"levels": [_level(1, 73.5, 13.6, 212.0), _level(8, 402.0, 19.1, 388.0)]},
        "candidate": {
            "levels": [
                _level(1, 64.4, 15.53, 219.0, acceptance_length=1.62),
                _level(8, 301.0, 25.8, 421.0, acceptance_length=1.58),
            ]
        },
        "comparison": {
            "metric": "tpot",
            "level": 1,
            "estimate": -0.124,
            "low": -0.171,
            "high": -0.081,
            "unit": "relative speed change",
            "margin": 0.03,
            "confidence": 0.95,
            "pairs": 36,
            "outcome": "worse",
            "reason": slower,
            "notes": [],
            "levels": [],
        },
        "guard": {"state": "disarmed", "at": "2026-03-01T09:41:10.000Z"},
        "checks": _checks(),
    }


def _failed() -> dict[str, Any]:
    sentence = "the GPU memory does not suffice for the KV cache"
    return {
        "class": "kv-cache",
        "failure": {
            "kind": "kv-cache",
            "sentence": sentence,
            "lines": [
                "(EngineCore pid=4121) ERROR ValueError: No available memory for the cache blocks.",
                "(EngineCore pid=4121) ERROR \x1b[31mTry increasing\x1b[0m [bold]gpu_memory_utilization[/bold]",
            ],
            "hint": "a draft model takes memory too: lower max-model-len or raise gpu-memory-utilization",
        },
        "history": _steps(
            ("baseline", "start", "2026-02-28T20:00:00.100Z", "the service is free"),
            ("write-unit", "baseline-measured", "2026-02-28T20:00:01.000Z", ""),
            ("verify", "unit-written", "2026-02-28T20:00:01.400Z", ""),
            ("restart", "verified", "2026-02-28T20:00:09.000Z", ""),
            ("loading", "candidate-started", "2026-02-28T20:01:20.000Z", ""),
            ("rollback", "failed", "2026-02-28T20:14:00.000Z", sentence),
            ("restored", "restored", "2026-02-28T20:44:00.000Z", "the baseline answered"),
        ),
        "checks": _checks(),
    }


def log_lines() -> list[dict[str, Any]]:
    """Return journal lines as the API shows them; some are hostile."""
    texts = [
        "INFO 03-01 12:19:04 [api_server.py:1772] vLLM API server version 0.23.0",
        "INFO 03-01 12:19:09 [model.py:514] Resolved architecture: DeepseekV3ForCausalLM",
        "(EngineCore pid=5120) INFO 03-01 12:19:31 [core.py:93] Initializing a V1 LLM engine",
        "\rLoading safetensors checkpoint shards:  10%\rLoading safetensors checkpoint shards:  62% | 38/61",
        "\x1b[2J\x1b]0;owned\x07[red]not markup[/red] \x9b31mnor a colour",
        "(Worker_TP3 pid=5203) INFO 03-01 12:31:01 [weight_utils.py:302] 38 of 61 shards",
    ]
    return [
        {"n": n, "at": 1772368000.0 + n, "unit": "specd-candidate.service", "pid": 5120, "text": text}
        for n, text in enumerate(texts, start=1)
    ]
