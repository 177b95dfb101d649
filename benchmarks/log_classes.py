"""How fast is a journal read for stages and failures? `python -m benchmarks.log_classes [--lines N]`.

Journals of N lines and of a tenth of that, of three kinds: a server's requests, a flood of tracebacks that concern one
request each, and lines of 20 KB. Each ends with a crash of a worker, and the reader must still name it. Printed is the
cost of a line, how it grows with the journal's length (1.0 is linear), and the cost beside `json.loads` of the same
lines as journal records, which has to be paid in any case. All in CPU time.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable

from benchmarks.sites import core_share
from specd.engines import by_name

# What it may cost beside reading the records themselves, and how it may grow.
MOST_TIMES_JSON = 15.0
MOST_GROWTH = 1.5

_CRASH = (
    "(Worker_TP1 pid=9) ERROR 12-01 10:00:00 [multiproc_executor.py:671] WorkerProc hit an exception.",
    "(Worker_TP1 pid=9) ERROR 12-01 10:00:00 [multiproc_executor.py:671] Traceback (most recent call last):",
    '(Worker_TP1 pid=9) ERROR 12-01 10:00:00 [multiproc_executor.py:671]   File "/v/vllm/worker.py", line 22, in run',
    "(Worker_TP1 pid=9) ERROR 12-01 10:00:00 [multiproc_executor.py:671] RuntimeError: CUDA error: an illegal memory "
    "access was encountered",
    "(EngineCore pid=7) ERROR 12-01 10:00:00 [core.py:710] EngineCore encountered a fatal error.",
)


def requests(number: int) -> str:
    """Return a line of a server at work."""
    if number % 4:
        return f'(APIServer pid=1) INFO:     10.0.0.{number % 250}:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    return (
        f"(APIServer pid=1) INFO 12-01 10:00:00 [loggers.py:127] Engine 000: Avg prompt throughput: {number}.0 "
        "tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%, Prefix cache hit rate: 0.0%"
    )


def tracebacks(number: int) -> str:
    """Return a line of tracebacks of one request each, of several processes at once."""
    head = f"(APIServer pid={number % 3}) ERROR 12-01 10:00:00 [serving_chat.py:240] "
    step = number // 3 % 20
    if step == 0:
        return head + "Error in preprocessing prompt inputs"
    if step == 1:
        return head + "Traceback (most recent call last):"
    if step == 19:
        return head + "ValueError: This model's maximum context length is 4096 tokens"
    return head + f'  File "/v/vllm/entrypoints/openai/serving_chat.py", line {number}, in create_chat_completion'


def long_lines(number: int) -> str:
    """Return a line of 20 KB, a logged prompt."""
    return (
        f"(APIServer pid=1) INFO 12-01 10:00:00 [logger.py:39] Received request {number}: prompt: '{'error ' * 3400}'"
    )


KINDS: dict[str, tuple[Callable[[int], str], int]] = {
    "requests": (requests, 1), "tracebacks": (tracebacks, 1), "lines of 20 KB": (long_lines, 50),
}  # fmt: skip


def read(lines: list[str]) -> float:
    """Return the seconds that a reader takes for a journal that ends with a crash; its cause must be found."""
    reader = by_name("vllm").reader()
    begun = time.process_time()
    failure = None
    for line in lines:
        # As a trial does: it asks after every record.
        reader.feed(line)
        failure = reader.failure()
    took = time.process_time() - begun
    if failure is None or failure.kind != "engine-died" or "illegal memory access" not in failure.sentence:
        raise SystemExit(f"the crash was not found: {failure}")
    return took


def main() -> int:
    """Measure and print; status 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("?")[0])
    parser.add_argument("--lines", type=int, default=100_000)
    count = parser.parse_args().lines
    print(f"a busy loop gets {core_share():.0%} of a core")
    missed = False
    for name, (line, divisor) in KINDS.items():
        lines = [*map(line, range(count // divisor)), *_CRASH]
        tenth = [*map(line, range(count // divisor // 10)), *_CRASH]
        short = min(read(tenth) for _ in range(3)) / len(tenth)
        took = min(read(lines) for _ in range(2))
        records = [json.dumps({"MESSAGE": text, "_PID": "1", "PRIORITY": "6"}) for text in lines]
        begun = time.process_time()
        for record in records:
            json.loads(record)
        parsed = time.process_time() - begun
        growth, times = took / len(lines) / short, took / parsed
        missed = missed or growth > MOST_GROWTH or times > MOST_TIMES_JSON
        print(
            f"{name}: {len(lines)} lines in {took:.2f} s, {took / len(lines) * 1e6:.1f} us a line, "
            f"growth {growth:.2f}, {times:.1f} times json.loads"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
