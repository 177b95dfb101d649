"""The life of the API process after the load: listen, serve, and end by order, by death of the engine or by fault."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

from .channel import Child, PeerGone
from .exposition import Metrics
from .generation import Scheduler
from .logline import STDERR, Logger, traceback_text, write
from .openai_api import Api
from .wire import HttpServer, PreciseSelector
from .worker import Plan

_STATS_INTERVAL_S = 10.0
_WATCHDOG_FRAMES = (
    ("vllm/v1/engine/async_llm.py", "output_handler"),
    ("vllm/v1/engine/core_client.py", "get_output_async"),
)
_DEAD = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root "
    "cause."
)


def serve(plan: Plan, sock: socket.socket, engine: Child, log: Logger) -> int:
    """Serve until ordered to stop or the engine dies; returns the exit status."""
    loop = asyncio.SelectorEventLoop(PreciseSelector())
    try:
        return loop.run_until_complete(_serve(plan, sock, engine, log))
    finally:
        loop.close()


async def _serve(plan: Plan, sock: socket.socket, engine: Child, log: Logger) -> int:
    # Built inside the loop: before Python 3.10 an Event belongs to the loop it is made in.
    return await Service(plan, sock, engine, log).run()


class Service:
    """One serving life."""

    def __init__(self, plan: Plan, sock: socket.socket, engine: Child, log: Logger) -> None:
        self._plan = plan
        self._sock = sock
        self._engine = engine
        self._log = log
        settings, faults = plan.settings, plan.faults
        hides = faults.text("spec-inactive") == "silent"
        positions = 0 if settings.speculative is None or hides else settings.speculative.num_speculative_tokens
        self._metrics = Metrics(settings.served_model_names[0], positions, settings.has_log_stats)
        self._scheduler = Scheduler(plan.script, faults, settings, self._metrics)
        self._scheduler.on_crowd = self._crash_engine
        self._scheduler.on_stall = self._report_stall
        self._api = Api(plan, self._scheduler, self._metrics, log)
        self._http = HttpServer(self._api.answer)
        self._stop = asyncio.Event()
        self._engine_gone = asyncio.Event()
        self._is_interrupted = False

    async def run(self) -> int:
        """Listen, wait for the end, and return the exit status."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_signal, signum)
        loop.add_reader(self._engine.channel.fileno(), self._on_engine)
        self._announce()
        work = [asyncio.ensure_future(self._scheduler.run()), asyncio.ensure_future(self._log_stats())]
        await self._http.listen(self._sock)
        self._schedule_death()
        ends = [asyncio.ensure_future(self._stop.wait()), asyncio.ensure_future(self._engine_gone.wait())]
        await asyncio.wait([*ends, *work], return_when=asyncio.FIRST_COMPLETED)
        loop.remove_reader(self._engine.channel.fileno())
        try:
            status = await (self._end_dead() if self._engine_gone.is_set() else self._end_stopped())
            await self._close()
        finally:
            for task in (*ends, *work):
                task.cancel()
            await asyncio.gather(*ends, *work, return_exceptions=True)
        return status

    def _announce(self) -> None:
        settings = self._plan.settings
        url = f"unix:{settings.uds}" if settings.uds else f"http://{settings.host}:{settings.port}"
        self._log.info("entry.py:140", f"Starting vLLM server on {url}")
        self._log.info("launcher.py:186", "Available routes are:")
        for path, methods in self._api.routes():
            self._log.info("launcher.py:195", f"Route: {path}, Methods: {methods}")
        write(STDERR, f"INFO:     Started server process [{os.getpid()}]\n")
        write(STDERR, "INFO:     Waiting for application startup.\n")
        write(STDERR, "INFO:     Application startup complete.\n")

    def _schedule_death(self) -> None:
        faults, loop = self._plan.faults, asyncio.get_running_loop()
        serving = faults.at("serving")
        if serving is not None and serving[0] == "die":
            loop.call_soon(self._crash_engine)
        if faults.has("die-serving"):
            loop.call_later(faults.number("die-serving", 0.0), self._crash_engine)

    def _crash_engine(self) -> None:
        self._engine.channel.send(do="crash")

    def _on_signal(self, signum: int) -> None:
        if signum == signal.SIGTERM and self._plan.faults.has("ignore-sigterm"):
            return
        self._stop.set()

    def _on_engine(self) -> None:
        try:
            self._engine.channel.receive(0.0)
        except PeerGone:
            self._api.is_dead = True
            self._engine_gone.set()

    def _report_stall(self) -> None:
        serving = self._plan.faults.at("serving")
        if serving is not None and serving[0] == "oom":
            self._engine.channel.send(do="oom")

    async def _end_dead(self) -> int:
        """The engine died: 503 for a while, then this process ends by itself, with status 0 as vLLM does."""
        self._log.warning(
            "core_client.py:817", "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
        )
        self._report_dead_engine(self._api.fail_open())
        faults = self._plan.faults
        await _pause(self._plan.script.death_linger_s, self._stop)
        serving = faults.at("serving")
        if serving is not None and serving[0] == "die":
            return int(serving[1] or 1)
        return int(faults.number("die-serving", 0, position=1))

    async def _end_stopped(self) -> int:
        settings, faults = self._plan.settings, self._plan.faults
        self._log.info("launcher.py:254", "[shutdown] API server: shutdown triggered")
        mode = "wait" if settings.shutdown_timeout_s > 0 else "abort"
        timeout = f"timeout={settings.shutdown_timeout_s:g}s"
        self._log.info("launcher.py:270", f"[shutdown] API server: stopping engine client mode={mode} {timeout}")
        await self._drain(settings.shutdown_timeout_s)
        self._log.info("core_client.py:770", f"[shutdown] MPClient: start {timeout}")
        self._log.info("core_client.py:772", "[shutdown] MPClient: stopping engine manager")
        self._log.info("utils.py:628", "[shutdown] Process manager: send sigterm to process EngineCore")
        if faults.has("slow-stop"):
            await asyncio.sleep(faults.number("slow-stop", 0.0))
        self._api.is_dead = True
        if not faults.has("orphans"):
            await asyncio.get_running_loop().run_in_executor(None, self._engine.stop, 0.1)
        self._log.info("core_client.py:774", "[shutdown] MPClient: engine manager stopped")
        self._log.info("core_client.py:777", "[shutdown] MPClient: complete")
        self._report_dead_engine(self._api.fail_open())
        self._log.info("launcher.py:279", "[shutdown] API server: engine client stopped")
        self._log.info("launcher.py:282", "[shutdown] API server: signalling HTTP server shutdown")
        return 0

    async def _drain(self, seconds: float) -> None:
        """Let running requests end, with the door closed to new ones."""
        if seconds <= 0:
            return
        self._http.stop_listening()
        idle = asyncio.ensure_future(self._scheduler.idle.wait())
        await asyncio.wait([idle], timeout=seconds)
        idle.cancel()

    def _report_dead_engine(self, open_streams: int) -> None:
        """Print what vLLM prints at every end, a clean one included: an error that means nothing."""
        text = traceback_text(_WATCHDOG_FRAMES, _DEAD)
        for line in ("AsyncLLM output_handler failed.", *text.splitlines()):
            self._log.error("async_llm.py:906", line)
        for _ in range(open_streams):
            for line in ("Error in chat completion stream generator.", *text.splitlines()):
                self._log.error("serving.py:500", line)

    async def _close(self) -> None:
        self._log.info("launcher.py:304", "[shutdown] API server: shutting down FastAPI HTTP server")
        write(STDERR, "INFO:     Shutting down\n")
        self._http.stop_listening()
        self._http.close_connections()
        # One turn of the loop sends what the closing transports still hold.
        await asyncio.sleep(0.01)
        write(STDERR, "INFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.\n")
        write(STDERR, f"INFO:     Finished server process [{os.getpid()}]\n")

    async def _log_stats(self) -> None:
        """Print the throughput lines every ten seconds, as long as anything happened."""
        if not self._plan.settings.has_log_stats:
            await asyncio.Event().wait()
        metrics, is_idle = self._metrics, True
        prompt = generated = drafts = drafted = accepted = 0.0
        positions = [0] * len(metrics.per_position)
        while True:
            await asyncio.sleep(_STATS_INTERVAL_S)
            prompt_now, generated_now = metrics.value("prompt_tokens"), metrics.value("generation_tokens")
            if generated_now == generated and is_idle:
                continue
            is_idle = generated_now == generated and not metrics.gauge("num_requests_running")
            queries = metrics.value("prefix_cache_queries")
            hit_rate = 100 * metrics.value("prefix_cache_hits") / queries if queries else 0.0
            self._log.info(
                "loggers.py:335",
                f"Engine 000: Avg prompt throughput: {(prompt_now - prompt) / _STATS_INTERVAL_S:.1f} tokens/s, "
                f"Avg generation throughput: {(generated_now - generated) / _STATS_INTERVAL_S:.1f} tokens/s, "
                f"Running: {metrics.gauge('num_requests_running'):.0f} reqs, "
                f"Waiting: {metrics.gauge('num_requests_waiting'):.0f} reqs, "
                f"GPU KV cache usage: {100 * metrics.gauge('kv_cache_usage_perc'):.1f}%, "
                f"Prefix cache hit rate: {hit_rate:.1f}%",
            )
            prompt, generated = prompt_now, generated_now
            if not positions:
                continue
            before = (drafts, drafted, accepted, positions)
            drafts, drafted = metrics.value("spec_decode_num_drafts"), metrics.value("spec_decode_num_draft_tokens")
            accepted, positions = metrics.value("spec_decode_num_accepted_tokens"), list(metrics.per_position)
            self._log_speculation(drafts - before[0], drafted - before[1], accepted - before[2], before[3])

    def _log_speculation(self, drafts: float, drafted: float, accepted: float, old_positions: list[int]) -> None:
        if not drafts:
            return
        new = self._metrics.per_position
        rates = ", ".join(f"{(new[index] - old) / drafts:.3f}" for index, old in enumerate(old_positions))
        self._log.info(
            "metrics.py:120",
            f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}, "
            f"Accepted throughput: {accepted / _STATS_INTERVAL_S:.2f} tokens/s, "
            f"Drafted throughput: {drafted / _STATS_INTERVAL_S:.2f} tokens/s, Accepted: {accepted:.0f} tokens, "
            f"Drafted: {drafted:.0f} tokens, Per-position acceptance rate: {rates}, "
            f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%",
        )


async def _pause(seconds: float, until: asyncio.Event) -> None:
    """Wait that long, or until the event."""
    waiter = asyncio.ensure_future(until.wait())
    await asyncio.wait([waiter], timeout=seconds)
    waiter.cancel()
