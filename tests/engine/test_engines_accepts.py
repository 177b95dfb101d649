"""The acceptance question against the real vLLM: its answers are those that a real start gave, error and status."""

import json
import os
from pathlib import Path

import pytest

from specd.checks import Check, CheckStatus
from specd.engines import by_name
from tests.local_commands import LocalCommands
from tests.vllm.provision import VllmInstall

pytestmark = pytest.mark.engine

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}


def spec(**changes: object) -> list[str]:
    settings = {key: value for key, value in {**NGRAM, **changes}.items() if value is not None}
    return ["--speculative-config", json.dumps(settings)]


# What a real start ended with, and the word that its message had.
REFUSED = [
    (["--speculative-config", '{"method":"ngram",'], 2, "--speculative-config"),
    (spec(bogus_key=1), 1, "no key bogus_key"),
    (spec(method="nosuch"), 1, "refuses method"),
    (["--no-such-flag", "1"], 2, "--no-such-flag"),
    (spec(prompt_lookup_min=4, prompt_lookup_max=2), 1, "prompt_lookup_min=4 must be <= prompt_lookup_max=2"),
    (spec(num_speculative_tokens=None), 1, "num_speculative_tokens must be provided"),
    (spec(num_speculative_tokens=0), 1, "greater than 0"),
    (["--speculative-config", '{"model": "/srv/no-draft", "num_speculative_tokens": 3}'], 1, "/srv/no-draft"),
    # Dotted keys of two spellings are not merged: the last spelling's keys are all there are.
    (["--speculative-config.method", "ngram", "-sc.num_speculative_tokens=3"], 1, "--speculative-config"),
    (["--dtype", "foo"], 2, "--dtype"),
    (["--max-model-len", "1000000"], 1, "--max-model-len"),
    (["--max-model-len", "abc"], 2, "--max-model-len"),
]


def command(install: VllmInstall, *extra: str, model: str = "") -> list[str]:
    program = [str(install.vllm), "serve", model or str(install.model_dir), "--served-model-name", "gemma"]
    return [*program, "--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager", *extra]


async def examine(argv: list[str], **changes: object) -> dict[str, Check]:
    asked = {"env": ENV, "user": "", "cwd": "/", "timeout_s": 120.0, **changes}
    checks = await by_name("vllm").examine(LocalCommands(), argv, **asked)  # type: ignore[arg-type]
    return {check.name: check for check in checks}


@pytest.mark.parametrize(("extra", "status", "words"), REFUSED)
async def test_refusals(vllm_install: VllmInstall, extra: list[str], status: int, words: str) -> None:
    check = (await examine(command(vllm_install, *extra)))["engine.accepts"]
    assert check.status is CheckStatus.FAILED, check
    assert check.evidence.startswith(f"vLLM 0.32.0 would end with status {status}: ")
    assert words in check.evidence


async def test_no_such_model(vllm_install: VllmInstall) -> None:
    checks = await examine(command(vllm_install, model="/srv/no-such-model"))
    assert checks["engine.model"].status is CheckStatus.FAILED
    assert "status 1" in checks["engine.accepts"].evidence
    assert "/srv/no-such-model" in checks["engine.accepts"].evidence


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ([], "speculation off, max_model_len 2048"),
        (spec(), '"prompt_lookup_min": 4, "prompt_lookup_max": 4'),
        (
            ["--speculative_config.method", "ngram", "--speculative-config.num_speculative_tokens=3"],
            '"num_speculative_tokens": 3',
        ),
        (["--spec-method", "ngram", "--spec-tokens", "2"], '"num_speculative_tokens": 2'),
    ],
)
async def test_accepted_with_resolved_settings(vllm_install: VllmInstall, extra: list[str], words: str) -> None:
    checks = await examine(command(vllm_install, *extra))
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks
    assert words in checks["engine.accepts"].evidence


async def test_module_form_and_interpreter_form(vllm_install: VllmInstall) -> None:
    tail = command(vllm_install)[3:]
    forms = [
        [
            str(vllm_install.python),
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(vllm_install.model_dir),
            *tail,
        ],
        ["/usr/bin/env", "A=b", "nice", str(vllm_install.python), str(vllm_install.vllm), *command(vllm_install)[1:]],
    ]
    for argv in forms:
        checks = await examine(argv)
        assert checks["engine.accepts"].status is CheckStatus.PASSED, checks["engine.accepts"]


async def test_a_model_without_weights_is_seen_though_the_engine_accepts_it(
    vllm_install: VllmInstall, tmp_path: Path
) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        source = vllm_install.model_dir / name
        if source.exists():
            (tmp_path / name).write_bytes(source.read_bytes())
    checks = await examine(command(vllm_install, model=str(tmp_path)))
    assert checks["engine.accepts"].status is CheckStatus.PASSED
    assert checks["engine.model"].status is CheckStatus.FAILED
    assert "no weight files" in checks["engine.model"].evidence


async def test_a_config_file_is_read_by_the_engine(vllm_install: VllmInstall, tmp_path: Path) -> None:
    settings = tmp_path / "serve.yaml"
    settings.write_text("speculative-config:\n  method: ngram\n  num_speculative_tokens: 4\n  bogus: 1\n")
    checks = await examine(command(vllm_install, "--config", str(settings)))
    assert "no key bogus" in checks["engine.accepts"].evidence
    # In one word vLLM takes it and reads nothing.
    checks = await examine(command(vllm_install, f"--config={settings}"))
    assert checks["engine.accepts"].status is CheckStatus.PASSED
    assert checks["engine.config-file"].status is CheckStatus.WARNING


async def test_a_name_that_is_not_in_the_cache_is_unchecked(vllm_install: VllmInstall) -> None:
    checks = await examine(command(vllm_install, model="acme/never-downloaded"))
    assert checks["engine.accepts"].status is CheckStatus.UNCHECKED, checks["engine.accepts"]


async def test_a_time_limit_is_kept(vllm_install: VllmInstall) -> None:
    checks = await examine(command(vllm_install), timeout_s=1.0)
    assert checks["engine.accepts"].status is CheckStatus.UNCHECKED
    assert checks["engine.model"].status is CheckStatus.PASSED


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
async def test_asked_as_the_services_user(vllm_install: VllmInstall) -> None:
    # Nobody may not enter root's home, where the engine is: that is what a unit with User=nobody would meet.
    checks = await examine(command(vllm_install), user="nobody")
    if str(vllm_install.root).startswith("/root"):
        assert checks["engine.accepts"].status is CheckStatus.UNCHECKED, checks["engine.accepts"]
    else:
        assert checks["engine.accepts"].status in {CheckStatus.PASSED, CheckStatus.FAILED}
