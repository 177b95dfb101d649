"""Progress bars as vLLM draws them: shard bars end each redraw with a newline, capture bars redraw after a return."""

from __future__ import annotations

from .logline import STDERR, write

_BLOCKS = " ▏▎▍▌▋▊▉█"
_WIDTH = 10


class ShardBar:
    """`Loading safetensors checkpoint shards:  P% Completed | i/n [..]`, live in a journal when lines end."""

    def __init__(self, total: int, *, is_newline: bool) -> None:
        self._total = total
        self._end = "\n" if is_newline else ""

    def draw(self, done: int, elapsed_s: float) -> None:
        """Redraw with that many shards loaded."""
        percent = round(100 * done / self._total)
        timing = _timing(done, self._total, elapsed_s)
        head = "Loading safetensors checkpoint shards"
        write(STDERR, f"\r{head}: {percent:3d}% Completed | {done}/{self._total} [{timing}]{self._end}")

    def close(self) -> None:
        """End the bar's last line."""
        write(STDERR, "\n")


class CaptureBar:
    """`Capturing CUDA graphs (…):  P%|███ | i/n [..]`; one newline when it ends, so a journal sees it only then."""

    def __init__(self, mode: str, total: int) -> None:
        self._mode = mode
        self._total = total

    def draw(self, done: int, elapsed_s: float) -> None:
        """Redraw with that many graphs captured."""
        eighths = 8 * _WIDTH * done // self._total
        bar = "█" * (eighths // 8)
        if eighths < 8 * _WIDTH:
            bar = (bar + _BLOCKS[eighths % 8]).ljust(_WIDTH)
        percent = round(100 * done / self._total)
        timing = _timing(done, self._total, elapsed_s)
        write(STDERR, f"\rCapturing CUDA graphs ({self._mode}): {percent:3d}%|{bar}| {done}/{self._total} [{timing}]")

    def close(self) -> None:
        """End the line."""
        write(STDERR, "\n")


def _timing(done: int, total: int, elapsed_s: float) -> str:
    rate = done / elapsed_s if done and elapsed_s > 0 else 0.0
    left = _clock((total - done) / rate) if rate else "00:00" if done else "?"
    if not rate:
        speed = "?it/s"
    elif rate >= 1:
        speed = f"{rate:5.2f}it/s"
    else:
        speed = f"{1 / rate:5.2f}s/it"
    return f"{_clock(elapsed_s)}<{left}, {speed}]"[:-1]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
