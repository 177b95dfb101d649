"""Examining a command line against real files and the rehearsal program's own acceptance test, on this machine."""

import asyncio
import json
import os
import pwd
import sys
import tempfile
from pathlib import Path

import pytest

from specd.checks import Check, CheckStatus
from specd.engines import by_name, recognise
from specd.engines.log_text import clean_lines
from specd.engines.model_files import check_model
from specd.rehearsal import archive
from tests.contract.rehearsal import Engine as RehearsalProgram
from tests.local_commands import LocalCommands

REPO = str(Path(__file__).resolve().parents[2])
PROGRAM = [sys.executable, "-m", "specd.rehearsal", "serve"]
NGRAM = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["X"], "model_type": "x", "max_position_embeddings": 32768}')
    for number in (1, 2):
        (folder / f"model-0000{number}-of-00002.safetensors").write_bytes(
            (2).to_bytes(8, "little") + b"{}" + b"x" * 2**20
        )
    weight_map = {f"layer.{n}": f"model-0000{1 + n % 2}-of-00002.safetensors" for n in range(10)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


async def examine(argv: list[str], *, env: dict[str, str] | None = None, timeout_s: float = 30) -> dict[str, Check]:
    found = recognise(argv)
    assert found is not None
    checks = await found[0].examine(LocalCommands(), argv, env=env or {}, user="", cwd=REPO, timeout_s=timeout_s)
    by = {check.name: check for check in checks}
    assert len(by) == len(checks)
    return by


async def test_a_good_command_line_passes_with_the_resolved_settings(model: Path) -> None:
    checks = await examine([*PROGRAM, str(model), "--speculative-config", NGRAM])
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks
    assert list(checks) == ["engine.json", "engine.model", "engine.speculative-keys", "engine.flags", "engine.accepts"]
    assert '"prompt_lookup_min": 4' in checks["engine.accepts"].evidence
    assert "2 weight files, 2.0 MiB" in checks["engine.model"].evidence


async def test_the_archive_is_asked_too(model: Path, tmp_path: Path) -> None:
    packed = tmp_path / "rehearsal.pyz"
    packed.write_bytes(archive.build())
    for argv in (
        [sys.executable, str(packed), "serve", str(model)],
        [sys.executable, str(packed), "--model", str(model)],
    ):
        checks = await examine(argv)
        assert checks["engine.accepts"].status is CheckStatus.PASSED, checks["engine.accepts"]


@pytest.mark.parametrize(
    ("extra", "name", "words"),
    [
        (["--speculative-config", '{"method": "ngram",'], "engine.json", "--speculative-config"),
        (["--speculative-config", "'{}'"], "engine.json", "--speculative-config"),
        (
            ["--speculative-config", '{"method": "ngram", "num_speculative_token": 5}'],
            "engine.accepts",
            "num_speculative_token",
        ),
        (["--no-such-flag", "1"], "engine.accepts", "--no-such-flag"),
        (["--max-num-seqs", "many"], "engine.accepts", "--max-num-seqs"),
    ],
)
async def test_a_refusal_names_the_flag(model: Path, extra: list[str], name: str, words: str) -> None:
    checks = await examine([*PROGRAM, str(model), *extra])
    assert checks[name].status is CheckStatus.FAILED, checks
    assert words in checks[name].evidence
    assert checks["engine.accepts"].status is CheckStatus.FAILED


async def test_near_names_are_suggested(model: Path) -> None:
    config = '{"method": "ngram", "num_speculative_token": 5, "ngram_prompt_lookup_max": 4}'
    checks = await examine([*PROGRAM, str(model), "--speculativ-confg", "x", "--speculative-config", config])
    keys = checks["engine.speculative-keys"]
    assert keys.status is CheckStatus.FAILED
    assert "did you mean num_speculative_tokens?" in keys.fix
    assert "did you mean prompt_lookup_max?" in keys.fix
    assert "did you mean --speculative-config?" in checks["engine.flags"].fix


async def test_a_flag_given_twice_is_said(model: Path) -> None:
    checks = await examine([*PROGRAM, str(model), "--max-num-seqs", "8", "--max_num_seqs=16"])
    assert checks["engine.flags"].status is CheckStatus.WARNING
    assert "'16', counts" in checks["engine.flags"].evidence


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "not readable as JSON"),
        (lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), "lacks 1 of its weight files"),
        (lambda folder: (folder / "model-00002-of-00002.safetensors").write_bytes(b""), "is empty"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("{}"), "not readable"),
    ],
)
async def test_incomplete_models(model: Path, harm: object, words: str) -> None:
    harm(model)  # type: ignore[operator]
    check = await check_model(LocalCommands(), "engine.model", str(model), "/")
    assert (check.status, words in check.evidence) == (CheckStatus.FAILED, True), check
    lenient = (await examine([*PROGRAM, str(model)]))["engine.model"]
    assert (lenient.status, words in lenient.evidence) == (CheckStatus.WARNING, True), lenient


async def test_missing_model_and_draft(model: Path, tmp_path: Path) -> None:
    draft = json.dumps({"method": "eagle3", "model": str(tmp_path / "draft"), "num_speculative_tokens": 3})
    checks = await examine([*PROGRAM, str(tmp_path / "none"), "--speculative-config", draft])
    assert checks["engine.model"].status is CheckStatus.WARNING
    assert "does not exist" in checks["engine.model"].evidence
    assert checks["engine.draft"].status is CheckStatus.WARNING
    assert checks["engine.accepts"].status is CheckStatus.FAILED


async def test_a_hub_name_is_unchecked() -> None:
    checks = await examine([*PROGRAM, "acme/moe"], env={"SPECD_REHEARSAL": '{"model_must_exist": false}'})
    assert checks["engine.model"].status is CheckStatus.UNCHECKED
    assert checks["engine.accepts"].status is CheckStatus.PASSED


async def test_the_units_environment_reaches_the_engine_and_ours_does_not(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECD_REHEARSAL", '{"version": "1.2.3"}')
    assert "1.2.3" not in (await examine([*PROGRAM, str(model)]))["engine.accepts"].evidence
    told = await examine([*PROGRAM, str(model)], env={"SPECD_REHEARSAL": '{"version": "4.5.6"}'})
    assert "4.5.6" in told["engine.accepts"].evidence
    wrapped = ["/usr/bin/env", 'SPECD_REHEARSAL={"version": "7.8.9"}', "nice", *PROGRAM, str(model)]
    assert "7.8.9" in (await examine(wrapped))["engine.accepts"].evidence


async def test_secrets_do_not_show(model: Path) -> None:
    checks = await examine([*PROGRAM, str(model), "--api-key", "hush-hush-1", "hush-hush-2", "--nope", "hush-hush-1"])
    assert "hush" not in json.dumps([check.as_json() for check in checks.values()])


@pytest.mark.parametrize(
    "program", [["/nonexistent/python3", "-m", "specd.rehearsal", "serve"], ["/bin/false/vllm", "serve"]]
)
async def test_what_cannot_be_asked_is_unchecked(model: Path, program: list[str]) -> None:
    checks = await examine([*program, str(model)])
    assert checks["engine.accepts"].status is CheckStatus.UNCHECKED, checks["engine.accepts"]
    assert checks["engine.model"].status is CheckStatus.PASSED


async def test_a_python_without_the_engine_is_unchecked(model: Path, tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    script.write_text(f"#!{sys.executable}\nimport sys\n")
    checks = await examine([str(script), "serve", str(model)])
    assert checks["engine.accepts"].status is CheckStatus.UNCHECKED
    assert "No module named 'vllm'" in checks["engine.accepts"].evidence


async def test_a_slow_engine_is_unchecked_and_gone(model: Path, tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(__import__('os').getpid()))\n"
                                         "import time\ntime.sleep(60)\n")  # fmt: skip
    script = tmp_path / "bin-vllm" / "vllm"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\n")
    checks = await examine([str(script), "serve", str(model)], env={"PYTHONPATH": str(tmp_path)}, timeout_s=1)
    check = checks["engine.accepts"]
    assert (check.status, check.evidence) == (CheckStatus.UNCHECKED, "no answer within 1 s")
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_an_engine_that_crashes_is_unchecked(model: Path, tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("import os\nos.kill(os.getpid(), 4)\n")
    script = tmp_path / "bin-vllm" / "vllm"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\n")
    checks = await examine([str(script), "serve", str(model)], env={"PYTHONPATH": str(tmp_path)})
    assert checks["engine.accepts"].status is CheckStatus.UNCHECKED
    assert "ended by signal 4" in checks["engine.accepts"].evidence


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a Python that every user may run")
async def test_asked_as_the_services_user_in_its_directory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "vllm").mkdir()
        told = "f'uid {os.getuid()} in {os.getcwd()} home {os.environ[\"HOME\"]} nice {os.nice(0)}'"
        (Path(folder) / "vllm" / "__init__.py").write_text(f"import os\nraise ImportError({told})\n")
        account = pwd.getpwnam("daemon")
        checks = await by_name("vllm").examine(
            LocalCommands(),
            ["/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m"],
            env={"PYTHONPATH": folder},
            user="daemon",
            cwd=folder,
            timeout_s=20,
        )
    expected = f"uid {account.pw_uid} in {folder} home {account.pw_dir} nice {10 + os.nice(0)}"
    assert expected in checks[-1].evidence, checks[-1]


async def test_only_what_is_needed_runs_and_nothing_is_written(model: Path) -> None:
    host = LocalCommands()
    argv = [*PROGRAM, str(model), "--api-key", "hush-hush"]
    before = sorted(path.name for path in model.iterdir())
    await by_name("rehearsal").examine(host, argv, env={}, user="", cwd=REPO, timeout_s=30)
    assert sorted(path.name for path in model.iterdir()) == before
    assert not any("hush-hush" in word for command in host.commands for word in command)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("die:weights", "missing-file", "no weight files"),
        ("oom:capture", "gpu-memory", "out of memory"),
        ("die:import", "unknown", "libcudart"),
        ("die:compile:0", "unexpected-exit", "status 0"),
    ],
)
async def test_the_rehearsals_faults_are_explained(tmp_path: Path, fault: str, kind: str, words: str) -> None:
    program = RehearsalProgram(tmp_path, fault=fault, script={"model_must_exist": False})
    engine = by_name("rehearsal")
    reader = engine.reader()
    try:
        if fault.startswith("die"):
            status = program.wait_exit()
            for line in clean_lines(program.log() + program.errors()):
                reader.feed(line)
            failure = engine.explain_exit(reader, result="exit-code", code="exited", status=status)
        else:
            for _ in range(200):
                reader = engine.reader()
                for line in clean_lines(program.log() + program.errors()):
                    reader.feed(line)
                if reader.failure() is not None:
                    break
                await asyncio.sleep(0.05)
            found = reader.failure()
            assert found is not None
            failure = found
    finally:
        program.end()
    assert (failure.kind, words in failure.sentence) == (kind, True), failure
    assert failure.lines
