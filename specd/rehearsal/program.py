"""The rehearsal engine's entry: --version, check, or a start from import to exit status."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType

from .channel import Child, PeerGone, fork
from .check import parse_serve, refuse_script, run_check
from .command import Command, UsageError
from .engine import Engine
from .faults import Faults
from .logline import STDERR, STDOUT, Logger, traceback_text, write
from .pace import Pace, StageDeath
from .script import Script, ScriptError, load
from .settings import ConfigError, Settings, resolve_settings
from .worker import Plan

_USAGE = """usage: python -m specd.rehearsal serve MODEL [any flag of vllm serve]
       python -m specd.rehearsal [-m vllm.entrypoints.openai.api_server] --model MODEL [flags]
       python -m specd.rehearsal check -- ARGV
       python -m specd.rehearsal --version
"""
_STAGE_CAUSE = {
    "import": (("vllm/__init__.py", "<module>"), "ImportError: libcudart.so.13: cannot open shared object file"),
    "config": (("vllm/engine/arg_utils.py", "create_engine_config"), "RuntimeError: Failed to infer device type"),
    "startup": (("vllm/entrypoints/launchers/api_server/entry.py", "build_app"), "RuntimeError: startup failed"),
    "serving": (("vllm/entrypoints/launchers/launcher.py", "serve_http"), "RuntimeError: server failed"),
}
_BIND_FRAMES = (
    ("vllm/entrypoints/cli/serve.py", "cmd"),
    ("vllm/entrypoints/launchers/launcher.py", "setup_server"),
    ("vllm/entrypoints/launchers/launcher.py", "create_server_socket"),
)
_CORE_FRAMES = (
    ("vllm/entrypoints/cli/serve.py", "cmd"),
    ("vllm/v1/engine/async_llm.py", "from_vllm_config"),
    ("vllm/v1/engine/core_client.py", "make_async_mp_client"),
    ("vllm/v1/engine/utils.py", "wait_for_engine_startup"),
)


class Interrupted(BaseException):
    """A signal that ends the load."""


class EngineFailed(Exception):
    """The engine process failed before it was ready."""

    def __init__(self, status: int, core_status: int) -> None:
        super().__init__(status)
        self.status = status
        self.core_status = core_status


def main(argv: Sequence[str]) -> int:
    """Run the program and return its exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        write(STDOUT if argv else STDERR, _USAGE)
        return 0 if argv else 2
    try:
        script, faults = load(os.environ)
    except ScriptError as error:
        if argv[0] == "check":
            return refuse_script(str(error))
        write(STDERR, f"{error}\n")
        return 2
    if argv[0] in ("--version", "-v"):
        write(STDOUT, f"{script.version}\n")
        return 0
    if argv[0] == "check":
        words = list(argv[1:])
        return run_check(words[1:] if words[:1] == ["--"] else words, script, os.environ)
    return Start(argv, script, faults).run()


class Start:
    """One start of the API server process."""

    def __init__(self, argv: Sequence[str], script: Script, faults: Faults) -> None:
        self._argv = argv
        self._script = script
        self._faults = faults
        self._log = Logger("APIServer")
        self._engine: Child | None = None
        self._sigterms = 0

    def run(self) -> int:
        """Load, serve, and return the exit status."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        try:
            return self._run()
        except UsageError as error:
            write(STDERR, str(error))
            return error.exit_code
        except ConfigError as error:
            write(STDERR, traceback_text(error.frames, str(error)) + "\n")
            return error.exit_code
        except StageDeath as death:
            frame, cause = _STAGE_CAUSE[death.stage]
            write(STDERR, traceback_text([frame], cause) + "\n")
            return death.status
        except EngineFailed as failure:
            cause = (
                "RuntimeError: Engine core initialization failed. See root cause above. "
                f"Failed core proc(s): {{'EngineCore': {failure.core_status}}}"
            )
            write(STDERR, traceback_text(_CORE_FRAMES, cause) + "\n")
            return failure.status
        except Interrupted:
            return self._die_of_interrupt()
        finally:
            if self._engine is not None and not self._faults.has("orphans"):
                self._engine.stop(0.1)

    def _run(self) -> int:
        self._pace("import").until(1.0)
        command = parse_serve(self._argv)
        self._greet(command)
        sock = self._bind(command)
        settings = self._configure(command)
        plan = Plan(self._script, self._faults, settings)
        self._engine = fork(
            "VLLM::EngineCore",
            lambda channel: Engine(plan, channel).run(),
            close=[sock],
            outlives_peer=self._faults.has("orphans"),
            ignores_sigterm=self._faults.has("ignore-sigterm"),
        )
        # Importing the server costs as much as all the rest; it happens while the engine loads.
        from .server import serve

        while not self._poll_engine(3600):
            continue
        self._log.info("entry.py:136", "Supported tasks: ['generate']")
        self._pace("startup").until(1.0)
        if self._faults.has("never-ready"):
            while True:
                self._nap(3600)
        return serve(plan, sock, self._engine, self._log)

    def _greet(self, command: Command) -> None:
        version, model = self._script.version, command.model
        if os.environ.get("VLLM_DISABLE_LOG_LOGO") == "1":
            self._log.info("api_utils.py:347", f"vLLM server version {version}, serving model {model}")
        else:
            logo = (
                "\n       █     █     █▄   ▄█"
                f"\n ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}"
                f"\n  █▄█▀ █     █     █     █  model   {model}"
                "\n   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀\n"
            )
            self._log.info("api_utils.py:347", logo)
        self._log.info("api_utils.py:286", f"non-default args: {dict(command.changed)}")
        for warning in command.warnings:
            self._log.warning("argparse_utils.py:410", warning)

    def _bind(self, command: Command) -> socket.socket:
        """Bind at once, listen much later: a taken port shows now, and until ready connections are refused."""
        try:
            if command.values.get("uds"):
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.bind(command.values["uds"])
                return sock
            host = command.values.get("host") or ""
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            # The protocol is named because asyncio turns Nagle's algorithm off only for sockets that name it.
            sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, command.values["port"]))
        except OSError as error:
            raise self._bind_error(f"{type(error).__name__}: [Errno {error.errno}] {error.strerror}") from error
        except OverflowError as error:
            raise self._bind_error(f"OverflowError: {error}") from error
        return sock

    def _bind_error(self, text: str) -> ConfigError:
        error = ConfigError("OSError" + text.partition("Error")[2] if text.startswith("PermissionError") else text)
        error.frames = _BIND_FRAMES
        return error

    def _configure(self, command: Command) -> Settings:
        pace = self._pace("config")
        settings = resolve_settings(command, self._script, os.environ)
        self._log.info("model.py:733", f"Resolved architecture: {settings.architecture}")
        self._log.info("model.py:2152", f"Using max model len {settings.max_model_len}")
        if settings.speculative is not None and settings.speculative.method == "ngram":
            self._log.warning(
                "vllm.py:1605",
                "Async scheduling not supported with ngram-based speculative decoding and will be disabled.",
            )
        self._log.warning(
            "vllm.py:725", "Model Runner V2 does not yet support rehearsal; using the V1 model runner instead."
        )
        pace.until(1.0)
        return settings

    def _pace(self, stage: str) -> Pace:
        return Pace(stage, self._script.stage_s(stage), self._faults, self._nap, self._report_oom)

    def _nap(self, seconds: float) -> None:
        if self._engine is None:
            time.sleep(seconds)
        else:
            self._poll_engine(seconds)

    def _report_oom(self, stage: str) -> None:
        frame = _STAGE_CAUSE[stage][0]
        cause = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has 94.06 MiB free."
        write(STDERR, traceback_text([frame], cause) + "\n")

    def _poll_engine(self, seconds: float) -> bool:
        """Wait for the engine; returns whether it said ready, raises EngineFailed when it is gone."""
        assert self._engine is not None
        try:
            message = self._engine.channel.receive(seconds)
        except PeerGone:
            raise self._engine_failure(None) from None
        if message is not None and message["event"] == "failed":
            raise self._engine_failure(int(message["status"]))
        return message is not None and message["event"] == "ready"

    def _engine_failure(self, status: int | None) -> EngineFailed:
        assert self._engine is not None
        deadline = time.monotonic() + 5
        while self._engine.reap() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        core_status = self._engine.status or 0
        # The engine's end may be seen before this process's own signal is.
        time.sleep(0.05)
        if core_status == -signal.SIGTERM and self._script.swallow_sigterm and self._sigterms == 1:
            # SIGTERM to the whole group in mid-load ends engine and worker, and vLLM's API process stays, waiting.
            while True:
                time.sleep(3600)
        return EngineFailed(1 if status is None else status, 1 if core_status == 0 else core_status)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGTERM:
            if self._faults.has("ignore-sigterm"):
                return
            self._sigterms += 1
            if self._script.swallow_sigterm and self._sigterms == 1:
                return
        raise Interrupted

    def _die_of_interrupt(self) -> int:
        """End as a process that was interrupted does: by SIGINT itself."""
        if self._engine is not None and not self._faults.has("orphans"):
            self._engine.stop(0.1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGINT)
        return 130
