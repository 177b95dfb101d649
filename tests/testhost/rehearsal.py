"""Sets up the rehearsal engine inside a test host as a team would its real one; needs nothing of the project there."""

import json
import shlex
from collections.abc import Mapping, Sequence

from tests.testhost.errors import HostError
from tests.testhost.host import TestHost

ARCHIVE = "/opt/rehearsal/rehearsal.pyz"
MODEL = "/srv/models/rehearsal"
MODEL_NAME = "rehearsal-1t"
PORT = 8000
UNIT = "llm.service"
INTERPRETERS = ("/usr/bin/python3", "/usr/local/bin/python3", "/usr/bin/python3.11", "/usr/local/bin/python3.11")

UNIT_TEXT = """\
[Unit]
Description=A language model behind an OpenAI-compatible API
After=network.target

[Service]
Type=simple
EnvironmentFile=-/etc/rehearsal/{unit}.env
Environment="SPECD_REHEARSAL=/etc/rehearsal/{unit}.json"
ExecStart={python} {archive} serve {model} \\
    --served-model-name {model_name} \\
    --host 127.0.0.1 --port {port}{flags}
Restart=on-failure
RestartSec=2
TimeoutStopSec=20

[Install]
WantedBy=multi-user.target
"""


def guest_python(host: TestHost) -> str:
    """Return the path of a Python 3.9 or newer inside; raises HostError when its /usr has none."""
    check = "import sys; sys.exit(sys.version_info < (3, 9))"
    for interpreter in INTERPRETERS:
        if host.exists(interpreter) and host.exec([interpreter, "-c", check], check=False).returncode == 0:
            return interpreter
    raise HostError(f"host {host.name} has no Python 3.9 or newer in {', '.join(INTERPRETERS)}")


def write_rehearsal_unit(
    host: TestHost,
    archive: bytes,
    *,
    unit: str = UNIT,
    port: int = PORT,
    flags: Sequence[str] = (),
    script: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Write an enabled baseline unit that runs the engine's archive, not started, and return its name.

    `script` is the engine's script, shared by every start; `environment` goes to the unit's EnvironmentFile. Flags are
    words without quotes, blanks, backslashes, % or $.
    """
    host.put(ARCHIVE, archive, mode=0o755)
    host.put(f"{MODEL}/config.json", json.dumps({"architectures": ["RehearsalForCausalLM"]}))
    host.put(f"/etc/rehearsal/{unit}.json", json.dumps(dict(script or {}), indent=2))
    lines = (f"{name}={shlex.quote(value)}\n" for name, value in (environment or {}).items())
    host.put(f"/etc/rehearsal/{unit}.env", "# Read at each start.\n" + "".join(lines), mode=0o640)
    text = UNIT_TEXT.format(
        unit=unit,
        python=guest_python(host),
        archive=ARCHIVE,
        model=MODEL,
        model_name=MODEL_NAME,
        port=port,
        flags="".join(f" \\\n    {flag}" for flag in flags),
    )
    host.write_unit(unit, text)
    host.systemctl("enable", unit)
    return unit


def request(host: TestHost, path: str, body: object = None, *, port: int = PORT, timeout_s: float = 60) -> str:
    """Ask an API on the host's loopback and return the answer's text; raises HostError unless the status is 2xx."""
    program = (
        "import sys, urllib.request as u; body = sys.stdin.buffer.read() or None; "
        "asked = u.Request(sys.argv[1], body, {'Content-Type': 'application/json'}); "
        "sys.stdout.buffer.write(u.urlopen(asked, timeout=float(sys.argv[2])).read())"
    )
    url = f"http://127.0.0.1:{port}{path}"
    asked = b"" if body is None else json.dumps(body).encode()
    command = [guest_python(host), "-c", program, url, str(timeout_s)]
    return host.exec(command, stdin=asked, timeout_s=timeout_s + 10).stdout


def is_healthy(host: TestHost, port: int = PORT) -> bool:
    """Whether /health on the host's loopback answers 200."""
    try:
        request(host, "/health", port=port, timeout_s=5)
    except HostError:
        return False
    return True
