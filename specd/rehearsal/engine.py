"""The EngineCore process: starts the workers, sizes the cache, and fails when a worker does."""

from __future__ import annotations

import select
import time
from typing import Any

from .channel import Channel, Child, PeerGone, fork
from .logline import Logger, traceback_text
from .worker import Plan, Worker

_WORKER_FAILED = (
    "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root "
    "cause."
)
_INIT_FRAMES = (
    ("vllm/v1/engine/core.py", "run_engine_core"),
    ("vllm/v1/executor/multiproc_executor.py", "_init_executor"),
    ("vllm/v1/executor/multiproc_executor.py", "wait_for_ready"),
)
_LOOP_FRAMES = (
    ("vllm/v1/engine/core.py", "run_busy_loop"),
    ("vllm/v1/executor/multiproc_executor.py", "collective_rpc"),
)


class Engine:
    """The process between the API server and its workers."""

    def __init__(self, plan: Plan, channel: Channel) -> None:
        self._plan = plan
        self._api = channel
        self._log = Logger("EngineCore")
        self._workers: list[Child] = []

    def run(self) -> int:
        """Start, report ready, pass on orders until the API server or a worker is gone; returns the exit status."""
        self._announce()
        for rank in range(self._plan.settings.tensor_parallel_size):
            self._workers.append(self._start_worker(rank))
        try:
            began = time.monotonic()
            compile_s = max(float(self._await(worker, "profiled")["compile_s"]) for worker in self._workers)
            self._size_cache()
            for worker in self._workers:
                worker.channel.send(do="go")
            for worker in self._workers:
                self._await(worker, "captured")
        except _WorkerFailed as failure:
            return self._fail(failure.status)
        compilation = "" if self._plan.settings.is_eager else f" (compilation: {compile_s:.2f} s)"
        elapsed = time.monotonic() - began
        self._log.info(
            "core.py:402", f"init engine (profile, create kv cache, warmup model) took {elapsed:.2f} s{compilation}"
        )
        self._api.send(event="ready")
        return self._serve()

    def _announce(self) -> None:
        settings, script = self._plan.settings, self._plan.script
        hides = self._plan.faults.text("spec-inactive") == "silent"
        speculative = None if hides else settings.speculative
        self._log.info(
            "core.py:133",
            f"Initializing a V1 LLM engine (v{script.version}) with config: model='{settings.model}', "
            f"speculative_config={speculative!r}, tokenizer='{settings.model}', skip_tokenizer_init=False, "
            f"tokenizer_mode=auto, revision=None, trust_remote_code=False, dtype=torch.bfloat16, "
            f"max_seq_len={settings.max_model_len}, download_dir=None, load_format=auto, "
            f"tensor_parallel_size={settings.tensor_parallel_size}, pipeline_parallel_size=1, data_parallel_size=1, "
            f"quantization=None, enforce_eager={settings.is_eager}, kv_cache_dtype=auto, seed=0, "
            f"served_model_name={settings.served_model_names[0]}, "
            f"enable_prefix_caching={settings.has_prefix_caching}, enable_chunked_prefill=True",
        )

    def _start_worker(self, rank: int) -> Child:
        faults = self._plan.faults
        inherited = [self._api, *(worker.channel for worker in self._workers)]
        return fork(
            "VLLM::Worker" if self._plan.settings.tensor_parallel_size == 1 else f"VLLM::Worker_TP{rank}",
            lambda channel: Worker(self._plan, rank, channel).run(),
            close=inherited,
            outlives_peer=faults.has("orphans"),
            ignores_sigterm=faults.has("ignore-sigterm"),
        )

    def _await(self, worker: Child, event: str) -> dict[str, Any]:
        """Wait for an event of a worker, and notice the API server's end meanwhile."""
        while True:
            self._watch(worker)
            try:
                message = worker.channel.receive(0.0)
            except PeerGone:
                raise _WorkerFailed(1) from None
            if message is None:
                continue
            if message["event"] == "failed":
                raise _WorkerFailed(int(message["status"]))
            if message["event"] == event:
                return message

    def _watch(self, worker: Child) -> None:
        watched = [worker.channel, *self._watched_api()]
        ready, _, _ = select.select(watched, [], [])
        if self._api in ready:
            self._take_order()

    def _watched_api(self) -> list[Channel]:
        return [] if self._api.is_lost else [self._api]

    def _take_order(self) -> None:
        order = self._api.receive(0.0)
        if order is not None:
            for worker in self._workers:
                worker.channel.send(**order)

    def _size_cache(self) -> None:
        settings, tokens = self._plan.settings, self._plan.script.kv_cache_tokens
        length = settings.max_model_len
        self._log.info(
            "kv_cache_utils.py:2327",
            f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {length:,} tokens per request: "
            f"{tokens / length:.2f}x",
        )

    def _fail(self, status: int) -> int:
        self._log.info("multiproc_executor.py:479", "[shutdown] Executor: waiting for worker exit count=1")
        for worker in self._workers:
            worker.stop(0.2)
        self._log.info("multiproc_executor.py:486", "[shutdown] Executor: all workers exited gracefully")
        for line in ("EngineCore failed to start.", *traceback_text(_INIT_FRAMES, _WORKER_FAILED).splitlines()):
            self._log.error("core.py:1510", line)
        self._api.send(event="failed", status=status)
        return 1

    def _serve(self) -> int:
        """Wait for orders; a worker that ends takes the engine with it."""
        while True:
            ready, _, _ = select.select([*self._watched_api(), *(w.channel for w in self._workers)], [], [])
            if self._api in ready:
                self._take_order()
            for worker in self._workers:
                if worker.channel in ready and self._is_gone(worker):
                    return self._crash(worker)

    def _is_gone(self, worker: Child) -> bool:
        try:
            worker.channel.receive(0.0)
        except PeerGone:
            return True
        return False

    def _crash(self, worker: Child) -> int:
        self._log.error("multiproc_executor.py:290", f"Worker proc VllmWorker-0 (pid {worker.pid}) died unexpectedly")
        cause = "RuntimeError: Worker failed with error 'process died', please check the stack trace above"
        text = traceback_text(_LOOP_FRAMES, cause)
        for line in ("EngineCore encountered a fatal error.", *text.splitlines()):
            self._log.error("core.py:1519", line)
        return 1


class _WorkerFailed(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
