"""Sets up the real vLLM inside a test host the way a team would run it: a unit, a drop-in, an environment file."""

import os
from pathlib import Path

from tests.testhost import Bind, TestHost
from tests.vllm.provision import VllmInstall

UNIT = "vllm-gemma.service"
PORT = 8000
MODEL_NAME = "gemma"
GUEST_VENV = Path("/opt/vllm")
GUEST_MODEL = Path("/srv/models/gemma-3-270m")
READY_TIMEOUT_S = 240

UNIT_TEXT = """\
[Unit]
Description=Gemma 3 270M behind an OpenAI-compatible API
Documentation=https://docs.vllm.ai
After=network.target
StartLimitIntervalSec=600
StartLimitBurst=3

[Service]
Type=simple
User=vllm
Group=vllm
WorkingDirectory=/var/lib/vllm
EnvironmentFile=/etc/vllm/gemma.env
ExecStart=/opt/vllm/bin/vllm serve /srv/models/gemma-3-270m \\
    --served-model-name gemma \\
    --host 127.0.0.1 --port ${{VLLM_LISTEN_PORT}} \\
    # Short contexts: this model answers in a few sentences.
    --max-model-len 2048 \\
    --max-num-seqs 8 \\
    --chat-template /etc/vllm/chat.jinja{eager}
Restart=on-failure
RestartSec=10
TimeoutStopSec=60
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""
DROP_IN_TEXT = """\
# Offline, and no usage reports.
[Service]
Environment=HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
Environment="VLLM_NO_USAGE_STATS=1" "DO_NOT_TRACK=1"
"""
ENVIRONMENT_TEXT = """\
# Where the API listens; loopback only.
VLLM_LISTEN_PORT={port}
VLLM_CPU_KVCACHE_SPACE="1"
"""


def vllm_binds(install: VllmInstall) -> tuple[Bind, ...]:
    """Return what a host needs at creation to run the installed engine, read-only, under /opt and /srv."""
    script = _guest_script(install)
    binds = [
        Bind(install.venv, GUEST_VENV),
        Bind(script, GUEST_VENV / "bin" / "vllm"),
        Bind(install.model_dir, GUEST_MODEL),
    ]
    if not install.base_prefix.is_relative_to("/usr"):
        binds.insert(0, Bind(install.base_prefix))
    return tuple(binds)


def _guest_script(install: VllmInstall) -> Path:
    """Return a copy of the vllm command whose first line names the interpreter at its place inside a host."""
    script = install.root / "vllm-inside-a-host"
    first_line = f"#!{GUEST_VENV}/bin/python\n"
    if not script.exists():
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(first_line + install.vllm.read_text().split("\n", 1)[1])
        fresh.chmod(0o755)
        fresh.replace(script)
    return script


def write_vllm_unit(host: TestHost, install: VllmInstall, *, port: int = PORT, eager: bool = True) -> str:
    """Write the baseline unit and all it refers to, enabled but not started, and return its name.

    The host was made with vllm_binds. Without eager the engine compiles first: a minute longer, needs g++.
    """
    host.exec(["useradd", "--system", "--create-home", "--home-dir", "/var/lib/vllm", "vllm"])
    host.put("/etc/vllm/chat.jinja", install.chat_template.read_bytes())
    host.put("/etc/vllm/gemma.env", ENVIRONMENT_TEXT.format(port=port))
    host.put(f"/etc/systemd/system/{UNIT}.d/10-offline.conf", DROP_IN_TEXT)
    host.write_unit(UNIT, UNIT_TEXT.format(eager=" \\\n    --enforce-eager" if eager else ""))
    host.systemctl("enable", UNIT)
    return UNIT
