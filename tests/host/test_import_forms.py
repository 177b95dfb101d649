"""`specd import` of services in every form that teams give them: what it prints loads, and `specd check` takes it."""

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specd.config import parse_config
from tests.host.test_trial_wrapped import PODMAN
from tests.host.trial_site import put_engine, serve_words, unit_text
from tests.testhost import TestHost
from tests.testhost.errors import HostError
from tests.testhost.options import HostOptions
from tests.testhost.power import wait_until
from tests.testhost.rehearsal import ARCHIVE, MODEL, MODEL_NAME, guest_python, request

pytestmark = pytest.mark.host

# The programs in front run what follows their own words, as the real ones do.
_NUMACTL = '#!/bin/sh\nshift 2\nexec "$@"\n'
_CONDA = '#!/bin/sh\nshift 4\nexec "$@"\n'
_UV = '#!/bin/sh\nshift 3\nexec "$@"\n'
_VLLM = """\
#!{python}
import os, re, sys
words = sys.argv[1:]
if "--config" in words:
    text = open(words[words.index("--config") + 1]).read()
    pairs = re.findall(r"(?m)^([\\w-]+): (.+)$", text)
    words = ["serve", *(word for key, value in pairs for word in ("--" + key, value))]
os.execv({python!r}, [{python!r}, {archive!r}, *words])
"""
_MODULE = """\
import os, sys
os.execv(sys.executable, [sys.executable, {archive!r}, "serve", *sys.argv[1:]])
"""
_YAML = "model: {model}\nserved-model-name: {name}\nhost: 127.0.0.1\nport: {port}\nmax-num-seqs: 7\n"


@dataclass(frozen=True)
class Form:
    """ExecStart with {serve} for the engine's words; what import must say of it; `unit` where it is no plain one."""

    command: str
    says: tuple[str, ...]
    lines: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    engine: str = "rehearsal"
    unit: str = ""
    scope: str = "system"


FORMS = {
    "template": Form(
        "{serve} --max-num-seqs ${{SEQS}}",
        ("--max-num-seqs 6",),
        ("EnvironmentFile=/etc/llm/%i.env",),
        {"/etc/llm/kimi.env": "SEQS=6\n"},
        unit="template@kimi.service",
    ),
    "bash": Form("/bin/bash -lc 'cd /srv && exec {serve} 2>&1 | cat'", ("started through: `bash -c`",)),
    "script": Form(
        "/opt/llm/start --enforce-eager",
        ("started through: ", "/opt/llm/start"),
        files={"/opt/llm/start": '#!/bin/bash -e\nexec {serve} "$@"\n'},
    ),
    "env": Form("/usr/bin/env CUDA_VISIBLE_DEVICES=2,3 {serve}", ("started through: env",)),
    "gpus": Form(
        "{serve} --tensor-parallel-size 2",
        ("GPUs: 2 (CUDA_VISIBLE_DEVICES=0,1)",),
        ("Environment=CUDA_VISIBLE_DEVICES=0,1",),
    ),
    "numactl": Form(
        "/usr/local/bin/numactl --cpunodebind=0 --membind=0 {serve}",
        ("started through: numactl",),
        files={"/usr/local/bin/numactl": _NUMACTL},
    ),
    "conda": Form(
        "/usr/local/bin/conda run -n vllm --no-capture-output {serve}",
        ("started through: conda",),
        files={"/usr/local/bin/conda": _CONDA},
    ),
    "uv": Form(
        "/usr/local/bin/uv run --project /srv {serve}", ("started through: uv",), files={"/usr/local/bin/uv": _UV}
    ),
    "container": Form(
        "/usr/local/bin/podman run --rm --name llm --network host vllm/vllm-openai:test {args}",
        ("started through: `podman run` of vllm/vllm-openai:test\n",),
        files={"/usr/local/bin/podman": PODMAN},
        engine="vllm",
    ),
    "yaml": Form(
        "/opt/vllm/bin/vllm serve --config /etc/llm/serve.yaml",
        ("more flags in: /etc/llm/serve.yaml",),
        files={"/opt/vllm/bin/vllm": _VLLM, "/etc/llm/serve.yaml": _YAML},
        engine="vllm",
    ),
    "module": Form(
        "{python} -m vllm.entrypoints.openai.api_server --model {args}",
        (f"model: {MODEL}",),
        ("Environment=PYTHONPATH=/opt/modules",),
        {f"/opt/modules/vllm/{place}__init__.py": "" for place in ("", "entrypoints/", "entrypoints/openai/")}
        | {"/opt/modules/vllm/entrypoints/openai/api_server.py": _MODULE},
        engine="vllm",
    ),
    "linger": Form("{serve}", ('scope = "user"',), scope="user"),
}


@pytest.fixture(scope="module")
def host(swept: None) -> Iterator[TestHost]:
    """A host on which all of them run, each on a port of its own."""
    made = TestHost.create(options=HostOptions(user_instance=True))
    try:
        made.boot()
        put_engine(made)
        for number, name in enumerate(FORMS):
            start(made, name, 8100 + number)
        for number in range(len(FORMS)):
            wait_until(lambda port=8100 + number: answers(made, port), 30, f"port {8100 + number}")
        yield made
    finally:
        made.destroy()


def unit_of(name: str) -> str:
    return FORMS[name].unit or f"{name}.service"


def start(host: TestHost, name: str, port: int) -> None:
    """Write one form's unit and files, and start it as its manager does."""
    form = FORMS[name]
    serve = serve_words(host, port)
    python = guest_python(host)
    texts = {
        "serve": serve, "python": python, "archive": ARCHIVE, "args": serve.partition(" serve ")[2],
        "model": MODEL, "name": MODEL_NAME, "port": port,
    }  # fmt: skip
    for path, text in form.files.items():
        host.put(path, text.format(**texts), mode=0o755)
    written = unit_text(form.command.format(**texts), *form.lines)
    unit = unit_of(name)
    file = unit.replace("@kimi", "@")
    if form.scope == "system":
        host.put(f"/etc/systemd/system/{file}", written)
        host.systemctl("daemon-reload")
        host.systemctl("enable", "--now", unit)
        return
    uid = host.exec(["id", "-u", "operator"]).stdout.strip()
    wait_until(lambda: host.exists(f"/run/user/{uid}/bus"), 15, "operator's systemd")
    host.put(f"/home/operator/.config/systemd/user/{file}", written, owner="operator")
    command = operator_systemd(host, "systemctl")
    host.exec([*command, "daemon-reload"])
    host.exec([*command, "enable", "--now", unit])


def operator_systemd(host: TestHost, program: str) -> list[str]:
    """Return the words that ask operator's own systemd."""
    uid = host.exec(["id", "-u", "operator"]).stdout.strip()
    login = ["setpriv", "--reuid=operator", "--regid=operator", "--init-groups"]
    return [*login, "env", f"XDG_RUNTIME_DIR=/run/user/{uid}", program, "--user"]


def answers(host: TestHost, port: int) -> bool:
    try:
        return MODEL_NAME in request(host, "/v1/models", port=port)
    except HostError:
        return False


@pytest.fixture(scope="module")
def config(host: TestHost, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config that knows the host, as root and as the one whose units they are."""
    path = tmp_path_factory.mktemp("config") / "config.toml"
    tables = [
        f"[hosts.{name}]\nssh = {json.dumps(alias)}\nssh_config = {json.dumps(str(host.ssh_config))}\n"
        for name, alias in (("system", host.alias), ("user", host.operator_alias))
    ]
    path.write_text("\n".join(tables))
    return path


def specd(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "specd", *words, "--config", str(config)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


async def test_each_form_is_read_and_checked(host: TestHost, config: Path, tmp_path: Path) -> None:
    both = asyncio.Semaphore(2)

    async def read(name: str) -> subprocess.CompletedProcess[str]:
        form = FORMS[name]
        async with both:
            return await asyncio.to_thread(
                specd, config, "import", form.scope, unit_of(name), "--scope", form.scope, "--name", name
            )

    printed = dict(zip(FORMS, await asyncio.gather(*map(read, FORMS)), strict=True))
    whole = config.read_text()
    lacking: list[tuple[str, str, str]] = []
    for number, (name, form) in enumerate(FORMS.items()):
        done = printed[name]
        assert done.returncode == 0, f"{name}: {done.stderr}"
        wanted = (*form.says, f"127.0.0.1:{8100 + number}", f'# model = "{MODEL_NAME}"', "its last start took")
        lacking += [(name, words, done.stdout) for words in wanted if words not in done.stdout]
        service = parse_config(config.read_text() + done.stdout, name).services[name]
        assert (service.unit, service.scope, service.engine) == (unit_of(name), form.scope, form.engine)
        whole += "\n" + done.stdout
    assert not lacking, "\n".join(f"{name} lacks {words!r} in\n{text}" for name, words, text in lacking)
    assert len(parse_config(whole, "all of them").services) == len(FORMS)
    together = tmp_path / "config.toml"
    together.write_text(whole)
    checked = await asyncio.to_thread(specd, together, "check", "--here", "--json")
    groups = json.loads(checked.stdout)["services"]
    failed = [(group["name"], check) for group in groups for check in group["checks"] if check["status"] == "failed"]
    assert {group["name"] for group in groups} == set(FORMS)
    assert not failed, failed


async def test_the_list_names_them_all(host: TestHost, config: Path) -> None:
    for scope in ("system", "user"):
        done = await asyncio.to_thread(specd, config, "import", scope, "--scope", scope)
        listed = {line.split()[0] for line in done.stdout.splitlines()}
        assert {unit_of(name) for name, form in FORMS.items() if form.scope == scope} <= listed, done.stdout


async def test_what_runs_outside_of_units_is_told_with_what_to_do(host: TestHost, config: Path) -> None:
    containers = ("llm vllm/vllm-openai:test serve", "lonely vllm/vllm-openai:v0.11 serve", "db postgres:16 postgres")
    host.put("/usr/local/bin/docker", f"#!/bin/sh\nprintf '%s\\n' {shlex.join(containers)}\n", mode=0o755)
    serve = "exec -a 'vllm serve /m --api-key sk-12345678' sleep 60"
    host.exec(["bash", "-c", f"({serve}) >/dev/null 2>&1 &"])
    host.exec([*operator_systemd(host, "systemd-run"), "--unit=other", "bash", "-c", serve])
    done = await asyncio.to_thread(specd, config, "import", "system", "--json")
    found = {server["where"].partition(" ")[0]: server for server in json.loads(done.stdout)["outside"]}
    assert set(found) == {"pid", "container", "other.service"}, found
    assert found["container"]["where"] == "container lonely"
    assert found["other.service"]["where"] == "other.service of operator"
    assert "--scope user" in found["other.service"]["advice"]
    assert "unit" in found["pid"]["advice"]
    shown = (await asyncio.to_thread(specd, config, "import", "system")).stdout
    assert shown.count("write a systemd unit") == 1
    assert "sk-12345678" not in done.stdout + shown


async def test_what_cant_be_driven_says_why_and_what_to_do(host: TestHost, config: Path) -> None:
    host.put("/opt/llm/loop.sh", f"#!/bin/bash\nwhile true; do\n  {serve_words(host)}\ndone\n", mode=0o755)
    refused = {
        "loop": ("/opt/llm/loop.sh", "line 3 of the script /opt/llm/loop.sh", "next: change it there"),
        "unpublished": (
            "/usr/local/bin/podman run --rm vllm/vllm-openai:test --model m",
            "is not published on its host",
            "-p 127.0.0.1:8000:8000",
        ),
        "other": ("/bin/sleep 1000", "runs no server that specd knows", "without UNIT, import lists what is"),
    }
    for name, (command, _, _) in refused.items():
        host.put(f"/etc/systemd/system/{name}.service", unit_text(command))
    host.systemctl("daemon-reload")
    for name, (_, why, next_step) in refused.items():
        done = await asyncio.to_thread(specd, config, "import", "system", f"{name}.service")
        assert (done.returncode, done.stdout) == (4, ""), done.stdout
        assert why in done.stderr
        assert next_step in done.stderr
