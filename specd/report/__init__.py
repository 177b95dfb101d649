"""Reports of trials in four forms, made from what `show --json` gives."""

from collections.abc import Callable, Sequence

from specd.report.csv_form import as_csv
from specd.report.html_form import as_html
from specd.report.json_form import as_json
from specd.report.markdown_form import as_markdown
from specd.report.requests_form import requests_csv, requests_parquet
from specd.report.rows import Trial

__all__ = ["FORMS", "REQUEST_FORMS", "as_csv", "as_html", "as_json", "as_markdown"]

FORMS: dict[str, Callable[[Sequence[Trial]], str]] = {
    "html": as_html,
    "md": as_markdown,
    "csv": as_csv,
    "json": as_json,
}
REQUEST_FORMS: dict[str, Callable[[Sequence[Trial]], str | bytes]] = {
    "csv": requests_csv,
    "json": as_json,
    "parquet": requests_parquet,
}
"""Forms with a row for each request."""
