"""Counters, gauges and histograms under vLLM's names, and their Prometheus text."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Sequence

_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)

_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "request_prompt_tokens": ("Number of prefill tokens processed.", _TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", _TOKENS),
    "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", _ITERATION),
    "request_params_max_tokens": ("Histogram of the max_tokens request parameter.", _TOKENS),
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _PER_TOKEN),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        _PER_TOKEN,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LATENCY),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _LATENCY),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _LATENCY),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _LATENCY),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _LATENCY),
}
_COUNTERS = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
}
_SPECULATIVE = {
    "spec_decode_num_drafts": "Number of spec decoding drafts.",
    "spec_decode_num_draft_tokens": "Number of draft tokens.",
    "spec_decode_num_accepted_tokens": "Number of accepted tokens.",
}
_GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """All series of one engine; `positions` is the draft length, 0 without speculation (no such families then)."""

    def __init__(self, model_name: str, positions: int, is_counting: bool = True) -> None:
        self._labels = f'engine="0",model_name="{_escape(model_name)}"'
        self._is_counting = is_counting
        self._created = time.time()
        self._counters = {name: 0.0 for name in (*_COUNTERS, *(_SPECULATIVE if positions else ()))}
        self._gauges = {name: 0.0 for name in _GAUGES}
        self._histograms = {name: _Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._finished = {reason: 0 for reason in FINISH_REASONS}
        self.per_position = [0] * positions
        self._http: dict[tuple[str, str, str], int] = {}

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        self._counters[name] += amount

    def value(self, name: str) -> float:
        """Return a counter."""
        return self._counters[name]

    def gauge(self, name: str) -> float:
        """Return a gauge."""
        return self._gauges[name]

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        self._gauges[name] = float(value)

    def observe(self, name: str, value: float) -> None:
        """Add an observation to a histogram."""
        self._histograms[name].observe(value)

    def count_finished(self, reason: str) -> None:
        """Count a request by how it ended."""
        self._finished[reason] += 1

    def count_draft(self, drafted: int, accepted: int) -> None:
        """Count one draft and how far it was accepted."""
        self.count("spec_decode_num_drafts")
        self.count("spec_decode_num_draft_tokens", drafted)
        self.count("spec_decode_num_accepted_tokens", accepted)
        for position in range(accepted):
            self.per_position[position] += 1

    def count_http(self, handler: str, method: str, status: int) -> None:
        """Count an HTTP request by handler, method and status class."""
        key = (handler, method, f"{status // 100}xx")
        self._http[key] = self._http.get(key, 0) + 1

    def render(self) -> str:
        """Return the text exposition."""
        lines = _process_lines()
        if self._is_counting:
            lines += self._engine_lines()
        lines += _head("http_requests_total", "Total number of requests by method, status and handler.", "counter")
        for (handler, method, status), number in self._http.items():
            labels = f'handler="{handler}",method="{method}",status="{status}"'
            lines.append(f"http_requests_total{{{labels}}} {float(number)}")
        return "\n".join(lines) + "\n"

    def _engine_lines(self) -> list[str]:
        lines: list[str] = []
        for name, value in self._counters.items():
            lines += self._counter(name, {**_COUNTERS, **_SPECULATIVE}[name], {"": value})
        if self.per_position:
            series = {f',position="{index}"': float(count) for index, count in enumerate(self.per_position)}
            lines += self._counter(_PER_POSITION, "Accepted tokens per draft position.", series)
        for name, value in self._gauges.items():
            lines += _head(f"vllm:{name}", _GAUGES[name], "gauge")
            lines.append(f"vllm:{name}{{{self._labels}}} {value!r}")
        finished = {f',finished_reason="{reason}"': float(number) for reason, number in self._finished.items()}
        lines += self._counter("request_success", "Count of successfully processed requests.", finished)
        for name, histogram in self._histograms.items():
            lines += self._histogram(name, histogram)
        return lines

    def _counter(self, name: str, text: str, series: dict[str, float]) -> list[str]:
        lines = _head(f"vllm:{name}_total", text, "counter")
        lines += [f"vllm:{name}_total{{{self._labels}{extra}}} {value!r}" for extra, value in series.items()]
        lines += _head(f"vllm:{name}_created", text, "gauge")
        lines += [f"vllm:{name}_created{{{self._labels}{extra}}} {self._created!r}" for extra in series]
        return lines

    def _histogram(self, name: str, histogram: _Histogram) -> list[str]:
        lines = _head(f"vllm:{name}", _HISTOGRAMS[name][0], "histogram")
        total = 0
        for index, count in enumerate(histogram.counts):
            total += count
            bound = repr(float(histogram.bounds[index])) if index < len(histogram.bounds) else "+Inf"
            lines.append(f'vllm:{name}_bucket{{{self._labels},le="{bound}"}} {float(total)}')
        lines.append(f"vllm:{name}_count{{{self._labels}}} {float(total)}")
        lines.append(f"vllm:{name}_sum{{{self._labels}}} {histogram.sum!r}")
        lines += _head(f"vllm:{name}_created", _HISTOGRAMS[name][0], "gauge")
        lines.append(f"vllm:{name}_created{{{self._labels}}} {self._created!r}")
        return lines


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _process_lines() -> list[str]:
    """Return the process_* series, as far as /proc tells them."""
    times = os.times()
    series = {"process_cpu_seconds_total": ("counter", times.user + times.system)}
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        with open("/proc/stat", encoding="ascii") as file:
            boot = next(float(line.split()[1]) for line in file if line.startswith("btime"))
        ticks = os.sysconf("SC_CLK_TCK")
        series["process_start_time_seconds"] = ("gauge", boot + int(fields[19]) / ticks)
        series["process_virtual_memory_bytes"] = ("gauge", float(fields[20]))
        series["process_resident_memory_bytes"] = ("gauge", float(int(fields[21]) * os.sysconf("SC_PAGE_SIZE")))
        series["process_open_fds"] = ("gauge", float(len(os.listdir("/proc/self/fd"))))
    except (OSError, ValueError, IndexError, StopIteration):
        series.setdefault("process_start_time_seconds", ("gauge", _IMPORTED_AT))
    lines: list[str] = []
    for name, (kind, value) in series.items():
        lines += [*_head(name, name.replace("_", " ").capitalize() + ".", kind), f"{name} {value!r}"]
    return lines


_IMPORTED_AT = time.time()
