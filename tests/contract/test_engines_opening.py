"""Looking into shells, scripts and containers: what a server gets, proven by running the very shell."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specd.engines import by_name
from specd.engines.opening import Opened, open_line
from specd.engines.server import read_server
from specd.errors import EngineError
from specd.hosts import Host, open_host
from specd.settings import HostSettings

VLLM = by_name("vllm")
# Stands in for the server's program: says what it was given, as the last thing that happens.
TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
BASH = shutil.which("bash") or "/bin/bash"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return open_host(HostSettings(name="here"), tmp_path)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program called vllm that tells its own words."""
    path = tmp_path / "bin" / "vllm"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\n{TELL}\n")
    path.chmod(0o755)
    (path.parent / "activate").write_text(f"export PATH={path.parent}:$PATH\n")
    return path


def told(argv: Sequence[str], env: dict[str, str] | None = None, cwd: Path | None = None) -> list[str]:
    """Run a command line and return the words that the server's program got."""
    whole = {"PATH": os.environ["PATH"], **(env or {})}
    done = subprocess.run(list(argv), env=whole, cwd=cwd, capture_output=True, text=True, check=True, timeout=20)
    words = json.loads(done.stdout.splitlines()[-1])[0]
    assert isinstance(words, list)
    return words


def server_words(words: Sequence[str]) -> list[str]:
    """Return what the server's program gets of an opened command line."""
    command = VLLM.recognise(words)
    assert command is not None
    return ["serve", *words[command.server_at :]]


def own(opened: Opened) -> list[str]:
    """Return what the server's program gets."""
    return server_words(opened.words)


TEXTS = [
    "exec {vllm} serve /m --port 8000",
    "{vllm} serve /m --port 8000",
    "cd / && exec {vllm} serve $MODEL --port ${{PORT:-8000}}",
    'export PORT=8000; M=/m; exec {vllm} serve "$M" --port $PORT',
    "source {bin}/activate && vllm serve /m --port 8000 2>&1 | cat",
    "set -euo pipefail\n# starts it\n{vllm} serve \\\n  /m \\\n  --port 8000 \\\n  $EXTRA\n",
    "if [ -d /tmp ]; then exec {vllm} serve /m --port 8000; fi",
    "({vllm} serve /m --port 8000 --note 'it'\\''s \"a\" $X' --t $'a\\tb\\x41')",
    "A=1 B='2 3' nice -n 1 {vllm} serve /m --port 8000 2>/dev/null --late \"x y\" 2>&1",
    'exec -a server {vllm} serve /m --port=8000 --json \'{{"a": [1, "b c"]}}\'',
    "bash -c 'exec {vllm} serve /m --port 8000 --deep \"q\"'",
    'exec {vllm} serve /m "$@"',
    'export X=$(echo secret); {vllm} serve /m --port 8000 --api-key "$(echo secret)"',
]
ENV = {"MODEL": "/m", "EXTRA": "--max-num-seqs 8 --enforce-eager", "X": "1", "PORT": "8000"}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("shell", ["bash", "sh"])
async def test_a_change_reaches_the_server_in_a_shells_text(host: Host, program: Path, text: str, shell: str) -> None:
    if shell == "sh" and any(word in text for word in ("source", "$'", "exec -a", "pipefail")):
        pytest.skip("bash only")
    whole = text.format(vllm=program, bin=program.parent)
    argv = [shell, "-c", whole, "name", "--port", "8000"]
    opened = await open_line(host, argv, ENV)
    assert [word for word in own(opened) if "$(" not in word] == [w for w in told(argv, ENV) if w != "secret"]
    changed = VLLM.change(opened.words, {"max-num-seqs": 16, "speculative-config": {"method": "ngram", "n": "it's $X"}})
    again = opened.embed(changed)
    assert again[:2] == tuple(argv[:2])
    assert again[3:] == tuple(argv[3:])
    assert told(again, ENV) == ["secret" if "$(" in word else word for word in server_words(changed)]
    assert own(await open_line(host, again, ENV)) == server_words(changed)


@pytest.mark.parametrize("first", ["#!/bin/bash -e", "#!/usr/bin/env bash", "#!/bin/sh"])
async def test_a_change_reaches_the_server_in_a_script(host: Host, program: Path, first: str, tmp_path: Path) -> None:
    script = tmp_path / "start"
    script.write_text(f'{first}\nMODEL=/m\nexec {program} serve $MODEL \\\n  --port 8000 "$@"\n')
    script.chmod(0o755)
    for argv in ([str(script), "--enforce-eager"], ["bash", str(script), "--enforce-eager"]):
        opened = await open_line(host, argv, {})
        assert own(opened) == told(argv) == ["serve", "/m", "--port", "8000", "--enforce-eager"]
        assert opened.embed(opened.words) == tuple(argv)
        changed = VLLM.change(opened.words, {"port": 8001, "enforce-eager": None, "seed": 7})
        again = opened.embed(changed)
        assert again != tuple(argv)
        assert told(again) == ["serve", "/m", "--port", "8001", "--seed", "7"]
        assert own(await open_line(host, again, {})) == told(again)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("for g in 0 1; do {vllm} serve /m; done", "inside a for"),
        ("start() {{ {vllm} serve /m; }}; start", "inside a function definition"),
        ("{vllm} serve /m & {vllm} serve /n", "2 servers are started"),
        ("source /etc/llm.conf; exec {vllm} serve /m $FLAGS", "$FLAGS becomes in line 1"),
        ("\n\nexec {vllm} serve $(cat /etc/model)", "$(cat /etc/model) becomes in line 3"),
        ("exec {vllm} serve /m --x *", "* becomes in line 1"),
        ("echo hello", "no LLM server is started"),
        ("exec {vllm} serve '/m", "can't be read with certainty"),
    ],
)
async def test_what_cannot_be_told_is_refused_with_its_place(host: Host, program: Path, text: str, words: str) -> None:
    with pytest.raises(EngineError) as caught:
        await open_line(host, ["bash", "-lc", text.format(vllm=program)], {})
    assert words in caught.value.what
    assert caught.value.next_step


WORDS = st.text(st.characters(exclude_characters="\0\r", codec="utf-8"), max_size=12)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    given_words=st.lists(WORDS, max_size=5),
    values=st.dictionaries(st.sampled_from(["seed", "revision", "tokenizer", "dtype"]), WORDS.filter(bool), max_size=3),
    wrapper=st.sampled_from([[], ["env", "A=b c"], ["nice", "-n", "1"], ["taskset", "-c", "0"], ["bash", "-c"]]),
)
async def test_any_words_survive_any_wrapper(
    program: Path, given_words: list[str], values: dict[str, str], wrapper: list[str]
) -> None:
    host = open_host(HostSettings(name="here"), program.parent)
    flags = [word for name, value in values.items() for word in (f"--{name}={value}",)]
    server = [str(program), "serve", "/m", *flags, "--", *given_words]
    argv = [*wrapper, shlex.join(server)] if wrapper[:1] == ["bash"] else [*wrapper, *server]
    opened = await open_line(host, argv, {})
    assert own(opened) == told(argv) == server[1:]
    changed = VLLM.change(opened.words, {"dtype": "half", "seed": None})
    assert told(opened.embed(changed)) == server_words(changed)
    assert own(await open_line(host, opened.embed(changed), {})) == server_words(changed)


DOCKER = "/usr/bin/docker run --rm --name llm --gpus all -v /hf:/root/.cache -e HF_HOME=/hf".split()  # noqa: SIM905


@pytest.mark.parametrize(
    ("image", "command"),
    [
        (["vllm/vllm-openai:latest"], ["--model", "/m", "--port", "8000"]),
        (["vllm/vllm-openai:v0.12.0"], ["/m", "--port", "8000"]),
        (["some.registry/vllm:1"], ["serve", "/m", "--port", "8000"]),
        (["--entrypoint", "vllm", "own:1"], ["serve", "/m", "--port=8000"]),
        (["own:1"], ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m"]),
        (["own:1"], ["bash", "-c", "exec vllm serve /m"]),
    ],
)
async def test_a_container_s_words_are_changed_behind_its_image(
    host: Host, image: list[str], command: list[str]
) -> None:
    argv = [*DOCKER, "-p", "127.0.0.1:18000:8000", *image, *command]
    server = await read_server(host, argv, {}, "")
    assert server is not None
    assert (server.command.model, server.command.address, server.command.port) == ("/m", "127.0.0.1", 18000)
    changed, env = server.changed({"seed": 7}, {"HF_HOME": None, "VLLM_LOGGING_LEVEL": "DEBUG"})
    assert env == {}
    at = changed.index(image[-1])
    assert "HF_HOME=/hf" not in changed
    assert "VLLM_LOGGING_LEVEL=DEBUG" in changed[:at]
    assert "7" in changed[-1]
    again = await read_server(host, changed, {}, "")
    assert again is not None
    assert again.command.flags["seed"] == "7"
    with pytest.raises(EngineError, match="not what clients see"):
        server.changed({"port": 9000}, {})


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["docker", "run", "-d", "vllm/vllm-openai", "--model", "m"], "detaches"),
        (["docker", "start", "-a", "llm"], "not a `run`"),
        (["docker", "run", "--rm", "vllm/vllm-openai", "--model", "m"], "not published"),
        (["apptainer", "run", "x.sif", "vllm", "serve", "m"], "not looked into"),
        (["fish", "-c", "vllm serve m"], "no shell whose quoting is known"),
    ],
)
async def test_what_cannot_be_driven_says_why(host: Host, words: list[str], why: str) -> None:
    with pytest.raises(EngineError, match=why):
        await read_server(host, words, {}, "")


async def test_the_file_of_config_counts_and_the_command_line_wins(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "model: /m\nport: 8123\nmax_num_seqs: 8\n\nspeculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n"
        "enforce-eager: true\nenable-prefix-caching: false\nserved-model-name: [a, b]\n"
    )
    argv = ["vllm", "serve", "--config", "c.yaml", "--port", "8200"]
    server = await read_server(host, argv, {}, str(tmp_path))
    assert server is not None
    flags = server.command.flags
    assert (server.command.model, server.command.served_name, server.command.port) == ("/m", "a", 8200)
    assert (flags["max-num-seqs"], flags["enforce-eager"], flags["enable-prefix-caching"]) == ("8", True, False)
    assert VLLM.speculation_asked(server.command) == {"method": "ngram", "num_speculative_tokens": 3}
    changed, _ = server.changed({"max-num-seqs": 16, "speculative-config.num_speculative_tokens": 5}, {})
    assert changed[:6] == tuple(argv)
    again = await read_server(host, changed, {}, str(tmp_path))
    assert again is not None
    assert VLLM.speculation_asked(again.command) == {"method": "ngram", "num_speculative_tokens": 5}
    assert again.command.flags["max-num-seqs"] == "16"
    with pytest.raises(EngineError, match=r"line 5 of .*c\.yaml"):
        server.changed({"speculative-config": None}, {})
    for text, words in (("- a\n", "no mapping"), ("a: [\n", "no YAML")):
        file.write_text(text)
        with pytest.raises(EngineError, match=words):
            await read_server(host, argv, {}, str(tmp_path))
    file.unlink()
    with pytest.raises(EngineError, match="can't be read"):
        await read_server(host, argv, {}, str(tmp_path))
