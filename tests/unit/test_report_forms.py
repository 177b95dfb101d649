"""Each form of the report: complete, readable by its own readers, and safe with hostile names."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from specd.cli.rejudging import policy_from, rejudged
from specd.errors import UsageError
from specd.report import FORMS, as_csv, as_html, as_json, as_markdown
from specd.report.requests_form import requests_csv, requests_parquet
from specd.report.rows import to_apply
from tests.contract.daemon_double import trial

EVIL = "</title><script>alert(1)</script>\x1b[31m|`*"


class Page(HTMLParser):
    """Collects what a browser would see: tags, addresses, text; complains of tags that are not closed."""

    VOID = frozenset({"meta"})

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


def requests(**more: Any) -> list[dict[str, Any]]:
    return [
        {
            "side": side,
            "concurrency": 1,
            "repeat": 1,
            "prompt_id": f"p{n}",
            "ttft_ms": 10.0 + n,
            "tpot_ms": None,
            **more,
        }
        for side in ("baseline", "candidate")
        for n in range(4)
    ]


def test_html_shows_distributions_and_the_verdict_as_pictures() -> None:
    times = ("12:00:00", "12:10:00", "12:40:00", "13:00:00")
    states = ("baseline", "loading", "rollback", "restored")
    history = [{"state": state, "at": f"2026-01-31T{time}.000Z"} for state, time in zip(states, times, strict=True)]
    compared = {"estimate": -0.2, "low": -0.25, "high": -0.1, "margin": 0.03, "metric": "tpot"}
    text = as_html([trial(requests=requests(), history=history, comparison=compared)])
    page = Page(text)
    assert page.open == []
    assert "Time to the first token, concurrency 1" in page.text
    assert "Time per token, concurrency 1" not in page.text
    assert 'class="margin"' in text
    assert "50 min 00 s without the baseline, of 1 h 00 min" in page.text


def test_requests_have_a_row_each_that_no_spreadsheet_runs() -> None:
    rows = list(csv.DictReader(io.StringIO(requests_csv([trial(requests=requests(error="=cmd()"))]))))
    assert len(rows) == 8
    assert rows[0]["side"] == "baseline"
    assert rows[0]["ttft_ms"] == "10.0"
    assert rows[0]["error"] == "'=cmd()"


def test_parquet_has_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    table = parquet.read_table(io.BytesIO(requests_parquet([trial(requests=requests())])))
    assert table.num_rows == 8
    assert table.column("ttft_ms").to_pylist()[:2] == [10.0, 11.0]


def test_a_better_candidate_can_be_applied() -> None:
    argv = ["/bin/vllm", "serve", "/m", "--speculative-config", '{"method": "ngram"}', "--x", "50%$A", ""]
    better = trial(outcome="better", candidate={"argv": argv}, baseline={"unit": "llm.service"})
    text = to_apply(better)
    assert text.startswith("# /etc/systemd/system/llm.service.d/50-ngram-5-4.conf\n[Service]")
    assert "ExecStart=\nExecStart=/bin/vllm \\\n    serve" in text
    assert '"{\\"method\\": \\"ngram\\"}"' in text
    assert "50%%$$A" in text
    assert text in Page(as_html([better])).text
    assert to_apply(trial(outcome="worse", candidate={"argv": argv})) == ""
    assert "by hand" in to_apply(trial(outcome="better", candidate={"argv": [*argv, "--api-key", "***"]}))


def levels(tpot_ms: float) -> list[dict[str, Any]]:
    samples = [
        {"concurrency": 1, "repeat": 1, "prompt_id": f"p{n}", "started_at": 0.0,
         "ttft_ms": 100.0 + n, "tpot_ms": tpot_ms + n / 100, "e2e_ms": 900.0, "tokens_out": 20}
        for n in range(12)
    ]  # fmt: skip
    return [{"level": {"concurrency": 1, "repeat": 1}, "samples": samples, "wall_s": 10.0, "loop_lag_p99_ms": 0.1}]


def test_another_policy_judges_the_same_samples_anew() -> None:
    measured = {"baseline": levels(10.0), "candidate": levels(11.0), "policy": {"margin": 0.03, "metric": "tpot"}}
    stored = trial(outcome="worse")
    assert rejudged(stored, measured, "margin=0.02")["outcome"] == "worse"
    other = rejudged(stored, measured, "margin=0.2")
    assert other["outcome"] == "equivalent"
    assert "judged anew by margin=0.2; it was worse" in other["reason"]
    assert rejudged(stored, measured, "metric=ttft")["outcome"] == "equivalent"
    assert rejudged(stored, {}, "margin=0.2") == stored
    failure = {"kind": "speculation-inactive", "sentence": "drafted nothing"}
    void = trial(outcome="invalid", reason="drafted nothing", failure=failure)
    assert rejudged(void, measured, "margin=0.02")["outcome"] == "invalid"
    with pytest.raises(UsageError, match=r"did you mean metric\?.*at least 0") as caught:
        policy_from("metrik=ttft,margin=5", {})
    assert caught.value.exit_code == 2
