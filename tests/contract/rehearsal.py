"""Starts the rehearsal engine as the program it is and talks HTTP to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

READY_S = 15.0
FAST_STAGES = {stage: 0.02 for stage in ("import", "config", "engine", "weights", "compile", "capture", "startup")}
FAST = {
    "base_step_ms": 2.0,
    "step_noise": 0.0,
    "death_linger_s": 0.3,
}
REPO = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Engine:
    """One start of the program, in a process group of its own."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        script: dict[str, Any] | None = None,
        fault: str = "",
        model: str = "acme/moe",
        program: tuple[str, ...] = (sys.executable, "-m", "specd.rehearsal", "serve"),
        env: dict[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.out, self.err = folder / "stdout", folder / "stderr"
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("SPECD_", "VLLM_"))}
        stages = {**FAST_STAGES, **(script or {}).get("stages", {})}
        environ["SPECD_REHEARSAL"] = json.dumps({**FAST, **(script or {}), "stages": stages})
        environ["SPECD_REHEARSAL_FAULT"] = fault
        environ.update(env or {})
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*program, *([model] if model else []), "--host", "127.0.0.1", "--port", str(self.port), *flags],
                stdout=out,
                stderr=err,
                env=environ,
                cwd=REPO,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        """Return standard output so far."""
        return self.out.read_bytes().decode(errors="replace")

    def errors(self) -> str:
        """Return standard error so far."""
        return self.err.read_bytes().decode(errors="replace")

    def accepts(self) -> bool:
        """Tell whether the port is open."""
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def wait_ready(self) -> Engine:
        """Return once connections are accepted."""
        wait_until(lambda: self.accepts() or self.process.poll() is not None, READY_S)
        assert self.process.poll() is None, self.log() + self.errors()
        return self

    def wait_exit(self, timeout_s: float = READY_S) -> int:
        """Return the exit status."""
        return self.process.wait(timeout_s)

    def children(self) -> list[int]:
        """Return the pids of engine and workers."""
        found, queue = [], [self.pid]
        while queue:
            pid = queue.pop()
            with contextlib.suppress(OSError):
                kids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                found += [int(kid) for kid in kids]
                queue += [int(kid) for kid in kids]
        return found

    def request(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """Send one request and return status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        payload = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        try:
            connection.request("GET" if payload is None else "POST", path, payload, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def ask(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """Send one request that must be answered with 200, and return its JSON."""
        status, answer = self.request(path, body, headers)
        assert status == 200, answer
        return json.loads(answer)

    def stream(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[tuple[float, Any]]:
        """Stream a completion; returns (arrival, event) with "[DONE]" as text, ending early where the stream is cut."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        if path == "/v1/chat/completions":
            body = {"messages": [{"role": "user", "content": "Say something about lakes."}], **body}
        events: list[tuple[float, Any]] = []
        try:
            connection.request("POST", path, json.dumps({"stream": True, **body}))
            response = connection.getresponse()
            assert response.status == 200
            assert response.getheader("content-type", "").startswith("text/event-stream")
            with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
                for line in response:
                    if line.startswith(b"data: "):
                        text = line[6:].strip().decode()
                        events.append((time.monotonic(), text if text == "[DONE]" else json.loads(text)))
        finally:
            connection.close()
        return events

    def metric(self, name: str, **labels: str) -> float | None:
        """Return the value of a series, None where there is none."""
        status, text = self.request("/metrics")
        assert status == 200
        for line in text.decode().splitlines():
            head, _, value = line.rpartition(" ")
            wanted = [f'{key}="{label}"' for key, label in labels.items()]
            if head.partition("{")[0] == name and all(each in head for each in wanted):
                return float(value)
        return None

    def end(self) -> None:
        """Kill the whole group."""
        for pid in [*self.children(), self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(5)


@contextlib.contextmanager
def started(folder: Path, *flags: str, **options: Any) -> Iterator[Engine]:
    """Start an engine and leave nothing of it behind."""
    engine = Engine(folder, *flags, **options)
    try:
        yield engine
    finally:
        engine.end()


def wait_until(condition: Any, timeout_s: float) -> None:
    """Poll another process's state until it holds; raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true within {timeout_s} s")
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def text_of(events: list[tuple[float, Any]]) -> str:
    """Join the content of a chat stream."""
    chunks = [event for _, event in events if isinstance(event, dict) and event.get("choices")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
