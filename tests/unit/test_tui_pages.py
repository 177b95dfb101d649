"""The trial screen's texts: figures, verdict, failure, checks, changes, clocks, stages."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.console import story
from tui.glyphs import ASCII, UNICODE, glyphs_for
from tui.ink import bar
from tui.pages import changes_page, checks_page, clocks_line, gauge_line, result_page, serving_line, stage_lines
from tui.records import Detail, Note, Trial, detail_from, service_from, trial_from
from tui.result import figure_rows, verdict_words

NOW = story.NOW
AT = NOW.isoformat()
KIMI = service_from(story.services()[0], AT)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are UTC's."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def known(trial: str) -> tuple[Trial, Detail]:
    body = story.whole(trial)
    return trial_from(body, AT), detail_from(body, AT)


def test_figures_of_both_sides_stand_side_by_side() -> None:
    _, detail = known(story.WORSE)
    rows = {(row.load, row.title): row for row in figure_rows(detail)}
    tpot = rows[("concurrency 1", "time per token, ms")]
    assert (tpot.baseline, tpot.candidate, tpot.change, tpot.is_better) == ("13.60", "15.53", "+14.2%", False)
    output = rows[("concurrency 8", "output, tok/s")]
    assert (output.baseline, output.candidate, output.change, output.is_better) == ("402.0", "301.0", "-25.1%", False)
    length = rows[("concurrency 1", "acceptance length")]
    assert (length.baseline, length.candidate, length.change) == ("-", "1.62", "")
    assert ("concurrency 1", "failed, %") not in rows


def test_failed_requests_are_shown_where_there_are_some() -> None:
    detail = Detail(
        baseline=({"concurrency": 1, "error_rate": 0.0},), candidate=({"concurrency": 1, "error_rate": 0.25},)
    )
    (row,) = figure_rows(detail)
    assert (row.title, row.baseline, row.candidate) == ("failed, %", "0.0", "25.0")


def test_flat_figures_are_read_as_well() -> None:
    (row,) = figure_rows(Detail(baseline=({"concurrency": 4, "tpot_ms_median": 10.0},)))
    assert (row.load, row.baseline, row.candidate) == ("concurrency 4", "10.00", "-")


@pytest.mark.parametrize("level", [{}, {"concurrency": None}, {"concurrency": "1", "tpot_ms": 3}])
def test_levels_without_a_concurrency_are_left_out(level: dict[str, object]) -> None:
    assert figure_rows(Detail(baseline=(level,))) == []


def test_the_verdict_is_a_sentence_with_its_interval_and_margin() -> None:
    _, detail = known(story.WORSE)
    assert verdict_words(detail) == (
        "time per token at concurrency 1: speed -12.4% (-17.1% to -8.1%); below 3.0% counts as equal"
    )


def test_a_speed_change_is_signed_alike_whatever_the_metric() -> None:
    for metric in ("tpot", "ttft", "output_tok_s"):
        assert "speed +8.0%" in verdict_words(Detail(comparison={"metric": metric, "estimate": 0.08}))


def test_no_comparison_is_no_verdict() -> None:
    assert verdict_words(Detail()) == ""
    assert verdict_words(Detail(comparison={"metric": "tpot", "estimate": None})) == ""


def test_the_result_begins_with_the_outcome() -> None:
    page = result_page(*known(story.WORSE), UNICODE).plain
    assert page.startswith("WORSE\n12.4 % slower at concurrency 1")
    assert "concurrency 8           baseline  candidate   change" in page


def test_a_failure_is_shown_with_class_lines_and_hint_and_never_as_markup() -> None:
    page = result_page(*known(story.FAILED), UNICODE)
    lines = page.plain.splitlines()
    assert lines[0] == "FAILED"
    assert "✗ kv-cache: the GPU memory does not suffice for the KV cache" in lines
    assert "  | (EngineCore pid=4121) ERROR Try increasing [bold]gpu_memory_utilization[/bold]" in lines
    assert lines[-1].startswith("  hint: a draft model takes memory too")
    assert page.plain.count("the GPU memory does not suffice") == 1


def test_notes_are_part_of_the_result() -> None:
    trial, detail = known(story.WORSE)
    page = result_page(trial, replace(detail, notes=(Note("alarm", "disk full", "2026-03-01T09:00:00Z"),)), ASCII)
    assert page.plain.endswith("09:00:00 alarm: disk full")


def test_a_trial_without_measurements_says_so() -> None:
    trial, _ = known(story.LOADING)
    assert (
        result_page(trial, Detail(), UNICODE).plain == "Nothing measured yet: first the baseline, then the candidate."
    )


def test_checks_that_did_not_pass_come_first_with_what_mends_them() -> None:
    _, detail = known(story.LOADING)
    lines = checks_page(detail.checks, UNICODE).plain.splitlines()
    assert lines[0] == "○ unchecked gpu.memory  nvidia-smi is not on this host"
    assert lines[1].strip() == "to mend it: install it, or watch the release by hand"
    assert lines[2].startswith("✓ passed")
    assert checks_page((), UNICODE).plain == "No check has run yet."


def test_changes_show_flags_environment_and_moves_and_no_secret() -> None:
    page = changes_page(*known(story.LOADING)).plain
    assert '--speculative-config {"method": "eagle3", "model": "/models/kimi-eagle3"' in page
    assert "VLLM_ATTENTION_BACKEND TRITON_MLA" in page
    assert "HF_TOKEN ***" in page
    assert "hf_do_not_show" not in page
    assert "12:17:30  verify             unit-written" in page


def test_the_clocks_show_outage_guard_and_deadline() -> None:
    trial, detail = known(story.LOADING)
    assert clocks_line(trial, detail, KIMI, NOW).plain == (
        "outage 13m27s of about 1h03m · guard acts in 14m00s · deadline 13:49 in 1h18m"
    )


def test_before_restart_the_expected_outage_is_said() -> None:
    trial, detail = known(story.LOADING)
    early = replace(detail, history=detail.history[:2], guard=None, deadline_at="")
    clocks = clocks_line(replace(trial, state="write-unit"), early, replace(KIMI, expected_outage_s=None), NOW)
    assert clocks.plain == "outage none yet, expected unknown: no earlier start"


def test_a_passed_deadline_a_due_guard_and_a_requested_end_are_said() -> None:
    trial, detail = known(story.LOADING)
    past = "2026-03-01T12:00:00Z"
    assert detail.guard is not None
    late = replace(detail, deadline_at=past, guard=replace(detail.guard, until=past), asked="ann at the console")
    clocks = clocks_line(trial, late, KIMI, NOW).plain
    assert clocks.endswith("guard is due · deadline passed · ending, asked by ann at the console")


def test_a_settled_trial_says_how_long_the_outage_was() -> None:
    assert clocks_line(*known(story.WORSE), KIMI, NOW).plain == "outage was 1h33m · guard disarmed"


def test_where_and_what_serves_is_one_line() -> None:
    trial, detail = known(story.LOADING)
    assert serving_line(trial, detail, KIMI).plain == "kimi on gpu1 · vllm-kimi.service · now serving: nothing yet"
    other = replace(KIMI, trial="another", serving="the candidate of another")
    assert serving_line(trial, detail, other).plain.endswith("now serving: nothing yet")


@pytest.mark.parametrize(("width", "rows"), [(200, 2), (118, 4), (78, 4), (40, 8), (20, 14)])
def test_stages_fit_the_width(width: int, rows: int) -> None:
    lines = stage_lines(*known(story.LOADING), NOW, width, UNICODE).plain.splitlines()
    assert len(lines) == rows
    assert max(map(len, lines)) <= max(width, len("✓ cudagraph-compile"))


def test_the_running_stage_shows_its_time_of_the_expected_and_later_ones_their_usual() -> None:
    text = stage_lines(*known(story.LOADING), NOW, 200, UNICODE).plain
    assert "12m04s of 18m30s" in text
    assert "~5m40s" in text


def test_the_gauge_says_share_end_and_source() -> None:
    line = gauge_line(*known(story.LOADING), NOW, 78, ASCII).plain
    assert line == "loads the weights  ############....... 62%  6m52s left, until 12:37\nweights  read from: journal"


def test_a_late_stage_says_by_how_much() -> None:
    trial, detail = known(story.LOADING)
    late = replace(trial, progress=None, expected_end_at="2026-03-01T12:30:00Z")
    assert gauge_line(late, detail, NOW, 78, ASCII).plain.startswith("loads the weights  1m04s longer than expected")


def test_a_settled_trial_says_what_its_state_means() -> None:
    assert gauge_line(*known(story.WORSE), NOW, 78, UNICODE).plain == "the baseline serves, proven"


@pytest.mark.parametrize(
    ("share", "drawn"), [(0.0, "...."), (0.5, "##.."), (1.0, "####"), (7.0, "####"), (-1.0, "....")]
)
def test_a_bar_stays_within_its_width(share: float, drawn: str) -> None:
    assert bar(share, 4, ASCII) == drawn


@pytest.mark.parametrize(
    ("environ", "is_unicode"),
    [
        ({}, True),
        ({"LANG": "C.UTF-8"}, True),
        ({"LANG": "en_US.utf8"}, True),
        ({"LANG": "C"}, False),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),
        ({"LC_CTYPE": "C.UTF-8"}, True),
        ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, False),
        ({"LC_ALL": "", "LC_CTYPE": "de_DE.UTF-8", "LANG": "C"}, True),
        ({"LANG": "en_US.ISO-8859-1"}, False),
    ],
)
def test_a_locale_without_utf8_gets_ascii(environ: dict[str, str], is_unicode: bool) -> None:
    assert glyphs_for(environ).is_unicode is is_unicode


def test_ascii_signs_are_ascii_and_one_cell_each() -> None:
    signs = [getattr(ASCII, name) for name in ASCII.__slots__ if name != "is_unicode"]
    assert all(sign.isascii() and len(sign) == 1 for sign in signs)


def test_rates_stand_after_the_concurrencies() -> None:
    levels = (
        {"concurrency": 0, "rate": 0.5, "output_tok_s": 3.0},
        {"concurrency": 4, "rate": 0.0, "output_tok_s": 9.0},
    )
    rows = figure_rows(Detail(baseline=levels, candidate=levels))
    assert [row.load for row in rows] == ["concurrency 4", "0.5 requests/s"]
