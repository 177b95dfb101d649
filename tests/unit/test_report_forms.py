"""Each form of the report: complete, readable by its own readers, and safe with hostile names."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from specd.report import FORMS, as_csv, as_html, as_json, as_markdown
from tests.contract.daemon_double import trial

EVIL = "</title><script>alert(1)</script>\x1b[31m|`*"


class Page(HTMLParser):
    """Collects what a browser would see: tags, addresses, text; complains of tags that are not closed."""

    VOID = frozenset({"meta", "rect"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"href", "src"}]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_one_whole_page_that_needs_no_network() -> None:
    page = Page(as_html([trial(), trial(id="zz", name="eagle-3", outcome="better")]))
    assert page.open == []
    assert {"table", "svg", "rect", "style"} <= page.tags
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert page.addresses == ["#trial-ab12cd", "#trial-zz"]
    for words in ("ngram-5-4", "eagle-3", "13.60", "17.00", "+25.0%", "2.41", "-20.0%", "at concurrency 1, slower"):
        assert words in page.text


def test_html_bars_are_in_proportion() -> None:
    widths = re.findall(r'class="(base|cand)" x="120" y="\d+" width="([\d.]+)"', as_html([trial()]))
    bars = {}
    for (side, width), key in zip(widths, ["ttft", "ttft", "tpot", "tpot", "tok", "tok"], strict=True):
        bars[key, side] = float(width)
    assert bars["tpot", "cand"] == 420
    assert bars["tpot", "base"] == pytest.approx(420 * 13.6 / 17, abs=0.1)
    assert bars["tok", "base"] == 420


def test_hostile_names_are_text_in_html() -> None:
    failure = {"kind": EVIL, "sentence": EVIL, "lines": [EVIL], "hint": EVIL}
    hostile = trial(id=EVIL, name=EVIL, service=EVIL, reason=EVIL, failure=failure, changes={"flags": {EVIL: EVIL}})
    text = as_html([hostile])
    page = Page(text)
    assert page.open == []
    assert "script" not in page.tags
    assert "\x1b" not in text
    assert "alert(1)" in page.text


def test_hostile_names_are_text_in_markdown() -> None:
    text = as_markdown([trial(name=EVIL)])
    assert "<script>" not in text
    overview = next(line for line in text.splitlines() if "alert" in line and line.startswith("|"))
    assert len(re.findall(r"(?<!\\)\|", overview)) == 7


def test_markdown_tables_have_equal_columns() -> None:
    text = as_markdown([trial(), trial(comparison=None, outcome=None)])
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(blocks) == 7
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    assert "| time per token, median (ms) | 13.60 | 17.00 | +25.0% |" in text


def rows_of(trials: list[dict[str, Any]]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_csv(trials))))


def test_csv_has_unrounded_numbers_a_row_for_each_level() -> None:
    two = trial()
    two["baseline"]["levels"].append({"concurrency": 4, "tpot_ms": {"median": 20.123456789}})
    first, second = rows_of([two])
    assert (first["concurrency"], first["baseline_tpot_ms_median"], first["candidate_tpot_ms_median"]) == (
        "1", "13.6", "17.0",
    )  # fmt: skip
    assert (second["concurrency"], second["baseline_tpot_ms_median"], second["candidate_tpot_ms_median"]) == (
        "4", "20.123456789", "",
    )  # fmt: skip
    assert first["estimate"] == "-0.2"


def test_csv_keeps_a_trial_without_figures_and_no_formula() -> None:
    [row] = rows_of([trial(baseline={}, candidate={}, comparison=None, name="=cmd()", service="-1+1", host="@x")])
    assert (row["name"], row["service"], row["host"], row["concurrency"]) == ("'=cmd()", "'-1+1", "'@x", "")


def test_json_is_the_api_s() -> None:
    assert json.loads(as_json([trial()])) == {"trials": [trial()]}


@pytest.mark.parametrize("form", ["html", "md", "csv"])
def test_secrets_are_masked(form: str) -> None:
    text = FORMS[form]([trial()])
    assert "sk-1" not in text
    assert "***" in text.replace("\\", "")


@pytest.mark.parametrize("form", ["html", "md", "csv", "json"])
def test_nothing_at_all_is_a_report_too(form: str) -> None:
    assert FORMS[form]([])
    bare = {"id": "x", "name": "a", "state": "queued"}
    assert "queued" in FORMS[form]([bare])
