"""The Worker process: loads, compiles and captures; in place of a model it reads bytes and holds memory."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import dataclass

from .bars import CaptureBar, ShardBar
from .channel import Channel, PeerGone
from .faults import Faults
from .logline import Logger, traceback_text
from .pace import Burner, CheckpointReader, Pace, StageDeath
from .script import Script
from .settings import Settings

_MIB = 1 << 20
_GIB = 1 << 30
_CACHE = "/root/.cache/vllm/torch_compile_cache"

_ROOT_CAUSE = {
    "engine": "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "weights": "RuntimeError: Cannot find any model weights with `{model}`",
    "compile": "torch._inductor.exc.InductorError: RuntimeError: ptxas exited with 255",
    "capture": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "serving": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
}
_FRAMES = {
    "engine": (("vllm/v1/worker/gpu_worker.py", "init_device"), ("vllm/distributed/parallel_state.py", "all_reduce")),
    "weights": (
        ("vllm/model_executor/model_loader/base_loader.py", "load_model"),
        ("vllm/model_executor/model_loader/default_loader.py", "_prepare_weights"),
    ),
    "compile": (("vllm/compilation/backends.py", "compile"), ("torch/_inductor/compile_fx.py", "compile_fx")),
    "capture": (("vllm/v1/worker/gpu_model_runner.py", "capture_model"), ("torch/cuda/graphs.py", "__exit__")),
    "serving": (
        ("vllm/v1/executor/multiproc_executor.py", "worker_busy_loop"),
        ("vllm/v1/worker/gpu_model_runner.py", "execute_model"),
    ),
}


@dataclass(frozen=True)
class Plan:
    """What every process of one start knows."""

    script: Script
    faults: Faults
    settings: Settings


class Worker:
    """One worker; rank 0 speaks, the others only load."""

    def __init__(self, plan: Plan, rank: int, channel: Channel) -> None:
        self._plan = plan
        self._rank = rank
        self._channel = channel
        size = plan.settings.tensor_parallel_size
        self._log = Logger("Worker" if size == 1 else f"Worker_TP{rank}")
        self._reader: CheckpointReader | None = None
        self._compile_s = 0.0

    def run(self) -> int:
        """Go through the stages and then wait for the end; returns the exit status."""
        try:
            return self._run()
        except PeerGone:
            self._log.info("multiproc_executor.py:843", "Parent process exited, terminating worker queues")
            return 0

    def _run(self) -> int:
        try:
            self._join()
            self._load()
            self._compile()
            self._capture()
        except StageDeath as death:
            self._die(death.stage, "WorkerProc failed to start.")
            self._channel.send(event="failed", status=death.status)
            return 1
        while True:
            message = self._channel.receive(None) or {}
            if message.get("do") == "crash":
                self._die("serving", "WorkerProc hit an exception.")
                return 1
            if message.get("do") == "oom":
                self._report_oom("serving")

    def _join(self) -> None:
        plan, log = self._plan, self._log
        size = plan.settings.tensor_parallel_size
        pace = self._pace("engine")
        log.info(
            "parallel_state.py:1906",
            f"world_size={size} rank={self._rank} local_rank={self._rank} "
            f"distributed_init_method=tcp://127.0.0.1:{29500 + os.getpid() % 1000} backend=nccl",
        )
        pace.until(0.9)
        log.info(
            "parallel_state.py:2350",
            f"rank {self._rank} in world size {size} is assigned as DP rank 0, PP rank 0, PCP rank 0, "
            f"TP rank {self._rank}, ETP rank 0, EP rank N/A, EPLB rank N/A",
        )
        pace.until(1.0)

    def _load(self) -> None:
        plan = self._plan
        settings, script = plan.settings, plan.script
        files = sorted(glob.glob(os.path.join(glob.escape(settings.model), "*.safetensors")))
        size = sum(map(os.path.getsize, files)) or int(script.reported_weights_gib * _GIB)
        share = settings.tensor_parallel_size
        target = min(size, int(script.read_mib * _MIB)) if settings.reads_weights else 0
        self._reader = CheckpointReader(files, target // share, int(script.weights_mib * _MIB) // share)
        pace = self._pace("weights", self._reader.advance)
        self._say("gpu_model_runner.py:5250", f"Starting to load model {settings.model}...")
        if settings.reads_weights:
            self._say(
                "weight_utils.py:1108",
                f"Filesystem type for checkpoints: EXT4. Checkpoint size: {size / _GIB:.2f} GiB. "
                f"Available RAM: {_available_ram_gib():.2f} GiB.",
            )
            self._draw_shards(pace, len(files) or script.shards)
            self._say("default_loader.py:501", f"Loading weights took {pace.elapsed_s():.2f} seconds")
        if settings.speculative is not None and not self._hides_speculation():
            self._say("gpu_model_runner.py:5274", "Loading drafter model...")
        pace.until(1.0)
        gib = size / _GIB / share
        self._say(
            "gpu_model_runner.py:5347", f"Model loading took {gib:.2f} GiB memory and {pace.elapsed_s():.6f} seconds"
        )

    def _draw_shards(self, pace: Pace, total: int) -> None:
        bar = ShardBar(total, is_newline=self._plan.script.bar == "newline")
        is_silent = self._plan.script.silent_loading or self._rank != 0
        for done in range(total + 1):
            pace.until(0.98 * done / total)
            if not is_silent:
                bar.draw(done, pace.elapsed_s())
        if not is_silent:
            bar.close()

    def _compile(self) -> None:
        if self._plan.settings.is_eager:
            self._say("monitor.py:91", "Initial profiling/warmup run took 0.05 s")
            return
        seconds = self._plan.script.stage_s("compile")
        pace = self._pace("compile", Burner(self._plan.script.cpu_share).advance)
        self._say("backends.py:1060", "Starting torch.compile")
        self._say(
            "backends.py:1094",
            f"Using cache directory: {_CACHE}/62062911ba/rank_{self._rank}_0/backbone for vLLM's torch.compile",
        )
        pace.until(0.35)
        self._say("backends.py:1155", f"Dynamo bytecode transform time: {0.35 * seconds:.2f} s")
        pace.until(0.8)
        self._say("backends.py:378", "Cache the graph of compile range (1, 8192) for later use")
        self._say("backends.py:393", f"Compiling a graph for compile range (1, 8192) takes {0.45 * seconds:.2f} s")
        pace.until(0.95)
        self._compile_s = pace.elapsed_s()
        self._say(
            "decorators.py:708", f"saved AOT compiled function to {_CACHE}/torch_aot_compile/9b0026c1/rank_0_0/model"
        )
        self._say("monitor.py:53", f"torch.compile took {self._compile_s:.2f} s in total")
        pace.until(1.0)
        self._say("monitor.py:81", f"Initial profiling/warmup run took {0.05 * seconds:.2f} s")

    def _capture(self) -> None:
        is_eager = self._plan.settings.is_eager
        pace = self._pace("capture", Burner(self._plan.script.cpu_share).advance) if not is_eager else None
        modes = self._graphs()
        if pace is not None:
            piecewise, full = modes
            self._say(
                "gpu_model_runner.py:6612",
                f"Profiling CUDA graph memory: PIECEWISE={piecewise[1]} (largest={piecewise[2]}), "
                f"FULL={full[1]} (largest={full[2]})",
            )
            pace.until(0.2)
            self._say("gpu_model_runner.py:6737", "Estimated CUDA graph memory: 0.38 GiB total")
        self._say(
            "gpu_worker.py:560", f"Available KV cache memory: {self._plan.script.kv_cache_tokens / 10_970:.2f} GiB"
        )
        self._channel.send(event="profiled", compile_s=self._compile_s)
        self._await_go()
        if pace is not None:
            self._draw_captures(pace, modes)
            pace.until(1.0)
            seconds = pace.elapsed_s()
            self._say("gpu_model_runner.py:6844", f"Graph capturing finished in {seconds:.0f} secs, took 0.49 GiB")
        self._channel.send(event="captured")

    def _draw_captures(self, pace: Pace, modes: list[tuple[str, int, int]]) -> None:
        total = sum(count for _, count, _ in modes)
        captured = 0
        for mode, count, _ in modes:
            bar = CaptureBar(mode, count)
            began = pace.elapsed_s()
            for done in range(count + 1):
                pace.until(0.2 + 0.75 * (captured + done) / total)
                if self._rank == 0:
                    bar.draw(done, pace.elapsed_s() - began)
            captured += count
            if self._rank == 0:
                bar.close()

    def _graphs(self) -> list[tuple[str, int, int]]:
        """Return (mode, number of graphs, largest batch) as profiling counts them."""
        script = self._plan.script
        is_speculative = self._plan.settings.speculative is not None and not self._hides_speculation()
        piecewise = script.piecewise_captures or (41 if is_speculative else 11)
        full = script.full_captures or (25 if is_speculative else 7)
        largest = (384, 192) if is_speculative else (64, 32)
        return [("mixed prefill-decode, PIECEWISE", piecewise, largest[0]), ("decode, FULL", full, largest[1])]

    def _await_go(self) -> None:
        while (self._channel.receive(None) or {}).get("do") != "go":
            continue

    def _hides_speculation(self) -> bool:
        return self._plan.faults.text("spec-inactive") == "silent"

    def _pace(self, stage: str, work: Callable[[float], None] | None = None) -> Pace:
        # Only rank 0 fails; with it the others lose their engine and end.
        faults = self._plan.faults if self._rank == 0 else Faults()
        return Pace(stage, self._plan.script.stage_s(stage), faults, self._nap, self._report_oom, work)

    def _nap(self, seconds: float) -> None:
        self._channel.receive(seconds)

    def _say(self, place: str, message: str) -> None:
        if self._rank == 0:
            self._log.info(place, message)

    def _die(self, stage: str, headline: str) -> None:
        cause = _ROOT_CAUSE[stage].format(model=self._plan.settings.model)
        text = traceback_text(_FRAMES[stage], cause)
        for line in (headline, *text.splitlines()):
            self._log.error("multiproc_executor.py:953", line)

    def _report_oom(self, stage: str) -> None:
        cause = (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "139.80 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 138.65 GiB memory in "
            "use. Of the allocated memory 136.02 GiB is allocated by PyTorch, and 1.40 GiB is reserved by PyTorch but "
            "unallocated."
        )
        for line in traceback_text(_FRAMES[stage], cause).splitlines():
            self._log.error("multiproc_executor.py:953", line)


def _available_ram_gib() -> float:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB
