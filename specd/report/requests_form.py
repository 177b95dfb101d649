"""One row for each measured request: as CSV, and as Parquet where pyarrow is installed."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specd.cli.text import clean
from specd.errors import UsageError
from specd.report.rows import Trial

__all__ = ["requests_csv", "requests_parquet"]

_TRIAL = ("trial", "name", "service", "outcome")
_COLUMNS = (
    *(
        "side",
        "concurrency",
        "rate",
        "repeat",
        "prompt_id",
        "started_at",
        "ttft_ms",
        "answer_ttft_ms",
        "tpot_ms",
        "e2e_ms",
    ),
    *("tokens_in", "tokens_out", "tokens_reasoning", "chunks", "exact", "finish", "error"),
    *("gap_p50_ms", "gap_p99_ms", "resent", "bunched", "send_delay_ms"),
)


def requests_csv(trials: Sequence[Trial]) -> str:
    """Return the table as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_TRIAL, *_COLUMNS], lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(_rows(trials))
    return text.getvalue()


def requests_parquet(trials: Sequence[Trial]) -> bytes:
    """Return the table as one Parquet file; raises UsageError where pyarrow is missing."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "Parquet needs the package pyarrow", next_step="install it beside specd: pip install 'specd[parquet]'"
        ) from None
    rows = list(_rows(trials))
    columns = {name: [row.get(name) for row in rows] for name in (*_TRIAL, *_COLUMNS)}
    out = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


def _rows(trials: Sequence[Trial]) -> Iterator[Mapping[str, Any]]:
    for trial in trials:
        of_trial = dict(zip(_TRIAL, (trial.get(key) for key in ("id", "name", "service", "outcome")), strict=True))
        for request in trial.get("requests") or ():
            yield {**of_trial, **{name: _cell(request.get(name)) for name in _COLUMNS}}


def _cell(value: Any) -> Any:
    """Return text so that no spreadsheet takes it for a formula; numbers stay."""
    if not isinstance(value, str):
        return value
    text = clean(value)
    return "'" + text if text.startswith(("=", "+", "-", "@")) else text
