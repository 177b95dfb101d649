"""The texts of the trial screen, built from the view model. Pure; all is Content, so nothing is read as markup."""

from collections.abc import Mapping
from datetime import datetime
from itertools import groupby

from textual.content import Content

from states.table import DESCRIPTIONS
from tui.glyphs import Glyphs
from tui.ink import ACCENT, BAD, GOOD, MUTED, WARN, bar, outcome_style, stage_look
from tui.model import SETTLED
from tui.records import Check, Detail, Service, Trial
from tui.result import FigureRow, figure_rows, verdict_words
from tui.timeline import Gauge, Stage, gauge, guard_left_s, outage, stages
from tui.words import clean, clock_time, clock_words, ends_at, moment, seconds_between, short, value_words

__all__ = [
    "changes_page",
    "checks_page",
    "clocks_line",
    "duration_or_unknown",
    "gauge_line",
    "result_page",
    "serving_line",
    "stage_lines",
]

_TITLES = {state.value: text for state, text in DESCRIPTIONS.items()}
_NO_START = "unknown: no earlier start"
_BAR_CELLS = 24
_SOON_S = 60.0

Part = tuple[str, str] | str | Content


def duration_or_unknown(seconds: float | None) -> str:
    """Return an expected outage in words."""
    return f"about {short(seconds)}" if seconds is not None else _NO_START


# -- heading


def serving_line(trial: Trial, detail: Detail | None, service: Service | None) -> Content:
    """Return where the trial is and what serves there now."""
    unit = f" · {service.unit}" if service and service.unit else ""
    serving = (service.serving if service and service.trial == trial.id else "") or (detail.serving if detail else "")
    style = WARN if serving.startswith(("nothing", "unknown")) else "bold"
    parts: list[Part] = [f"{trial.service} on {trial.host}{unit}"]
    if serving:
        parts += [(" · now serving: ", MUTED), (serving, style)]
    if detail and detail.rehearsal:
        parts += [(" · rehearsal", MUTED)]
    return Content.assemble(*parts)


def clocks_line(trial: Trial, detail: Detail, service: Service | None, now: datetime) -> Content:
    """Return the outage clock, the guard's countdown and the deadline."""
    parts: list[Part] = []
    away = outage(trial, detail, now)
    expected = service.expected_outage_s if service else None
    if away is None:
        if trial.state not in SETTLED:
            parts += [("outage ", MUTED), "none yet", (f", expected {duration_or_unknown(expected)}", MUTED)]
    elif away.is_over:
        parts += [("outage was ", MUTED), short(away.seconds)]
    else:
        of = f" of about {short(expected)}" if expected else ""
        parts += [("outage ", MUTED), (clock_words(away.seconds), f"bold {WARN}"), (of, MUTED)]
    parts += _guard_parts(detail, now, bool(parts))
    deadline = seconds_between(now.isoformat(), moment(detail.deadline_at))
    if deadline is not None and trial.state not in SETTLED:
        late = deadline < 0
        parts += [(" · " if parts else "", MUTED), ("deadline ", MUTED)]
        parts += [("passed", BAD) if late else clock_time(moment(detail.deadline_at))[:5]]
        parts += [] if late else [(f" in {clock_words(deadline)}", WARN if deadline < _SOON_S else MUTED)]
    if detail.asked and trial.state not in SETTLED:
        parts += [(f" · ending, asked by {detail.asked}", f"bold {WARN}")]
    return Content.assemble(*parts)


def _guard_parts(detail: Detail, now: datetime, has_more: bool) -> list[Part]:
    if detail.guard is None:
        return []
    parts: list[Part] = [(" · " if has_more else "", MUTED), ("guard ", MUTED)]
    left = guard_left_s(detail.guard, now)
    if left is None:
        return [*parts, (detail.guard.state, BAD if detail.guard.state == "fired" else "")]
    words = f"acts in {clock_words(left)}" if left > 0 else "is due"
    return [*parts, (words, BAD if left < _SOON_S else "")]


# -- stages


def stage_lines(trial: Trial, detail: Detail | None, now: datetime, width: int, glyphs: Glyphs) -> Content:
    """Return the stages as rows of cells, each a name over its time; split where the baseline stops if need be."""
    cells = [_stage_cell(stage, trial, now, glyphs) for stage in stages(trial, detail, now)]
    rows: list[Content] = []
    for row in _fit(cells, width):
        tops, bottoms = zip(*row, strict=True)
        rows += [Content("  ").join(tops), Content("  ").join(bottoms)]
    return Content("\n").join(rows)


Cell = tuple[Content, Content]


def _stage_cell(stage: Stage, trial: Trial, now: datetime, glyphs: Glyphs) -> Cell:
    sign, style = stage_look(stage.kind, stage.state, glyphs)
    name = f"{sign} {stage.state}"
    took = short(stage.took_s) if stage.took_s is not None else ""
    if stage.kind == "now" and stage.took_s is not None:
        took = clock_words(stage.took_s)
        end = seconds_between(trial.updated_at, moment(trial.expected_end_at)) or stage.expected_s
        took += f" of {short(end)}" if end else ""
    elif stage.kind == "later" and stage.expected_s is not None:
        took = f"~{short(stage.expected_s)}"
    width = max(len(name), len(took) + 2)
    is_loud = stage.kind in ("now", "end", "failed")
    top = Content.assemble((name.ljust(width), f"bold {style}" if is_loud else style))
    return top, Content.assemble((f"  {took}".ljust(width), "" if stage.kind == "now" else MUTED))


def _fit(cells: list[Cell], width: int) -> list[list[Cell]]:
    def length(row: list[Cell]) -> int:
        return sum(top.cell_length for top, _ in row) + 2 * (len(row) - 1)

    if length(cells) <= width:
        return [cells]
    # The first four stages leave the baseline untouched; the outage begins with the fifth.
    halves = [cells[:4], cells[4:]]
    if all(length(half) <= width for half in halves):
        return halves
    rows: list[list[Cell]] = [[]]
    for cell in cells:
        if rows[-1] and length([*rows[-1], cell]) > width:
            rows.append([])
        rows[-1].append(cell)
    return rows


def gauge_line(trial: Trial, detail: Detail | None, now: datetime, width: int, glyphs: Glyphs) -> Content:
    """Return what the running state does: a bar where the share is known, time left, what it is read from."""
    if trial.state in SETTLED:
        return Content.assemble((_TITLES.get(trial.state, trial.state), "bold"))
    found = gauge(trial, detail, now)
    title = (_TITLES.get(trial.state, trial.state), "bold")
    if found is None:
        return Content.assemble(title, ("; how long is not known yet", MUTED))
    parts: list[Part] = [title]
    if found.fraction is not None:
        drawn = bar(found.fraction, min(_BAR_CELLS, max(8, width // 4)), glyphs)
        parts += ["  ", (drawn, ACCENT), f" {found.fraction:.0%}"]
    if found.eta_s is not None:
        parts += ["  ", _left_words(found, now)]
    line = Content.assemble(*parts)
    where = f"{found.stage}  " if found.stage else ""
    source = f"read from: {found.source}" if found.source else ""
    return Content("\n").join([line, Content.assemble((where, ""), (source, MUTED))]) if where or source else line


def _left_words(found: Gauge, now: datetime) -> str:
    assert found.eta_s is not None, "the caller has looked"
    if found.eta_s < -1:
        return f"{short(-found.eta_s)} longer than expected"
    return f"{clock_words(found.eta_s)} left, until {ends_at(now, max(found.eta_s, 0.0))}"


# -- panes


def result_page(trial: Trial, detail: Detail, glyphs: Glyphs) -> Content:
    """Return verdict, figures and failure, the loudest first."""
    blocks: list[Content] = []
    if trial.outcome:
        line = Content.assemble((trial.outcome.upper(), f"bold {outcome_style(trial.outcome)}"))
        reason = trial.reason if not detail.failure or trial.reason != detail.failure.sentence else ""
        measured = Content.assemble((verdict_words(detail), MUTED))
        blocks.append(Content("\n").join([line, *(text for text in (Content(reason), measured) if text.plain)]))
    if detail.failure:
        blocks.append(_failure_block(detail, glyphs))
    rows = figure_rows(detail)
    if rows:
        blocks.append(_figures(rows))
    for note in detail.notes:
        style = {"alarm": BAD, "warning": WARN}.get(note.level, MUTED)
        at = clock_time(moment(note.at))
        blocks.append(Content.assemble((f"{at} {note.level}: ", style), note.text))
    if not blocks:
        return Content.assemble(("Nothing measured yet: first the baseline, then the candidate.", MUTED))
    return Content("\n\n").join(blocks)


def _failure_block(detail: Detail, glyphs: Glyphs) -> Content:
    failure = detail.failure
    assert failure is not None, "the caller has looked"
    lines = [
        Content.assemble((f"{glyphs.failed} {failure.kind}: ", f"bold {BAD}"), failure.sentence),
        *(Content.assemble(("  | ", MUTED), line) for line in failure.lines),
    ]
    if failure.hint:
        lines.append(Content.assemble(("  hint: ", MUTED), failure.hint))
    return Content("\n").join(lines)


def _figures(rows: list[FigureRow]) -> Content:
    lines: list[Content] = []
    for head, group in groupby(rows, key=lambda row: row.load):
        lines.append(Content.assemble((f"{head:<22}{'baseline':>10}{'candidate':>11}{'change':>9}", f"bold {MUTED}")))
        for row in group:
            style = "" if row.is_better is None else GOOD if row.is_better else WARN
            figures = f"  {row.title:<20}{row.baseline:>10}{row.candidate:>11}"
            lines.append(Content.assemble(figures, (f"{row.change:>9}", style)))
    return Content("\n").join(lines)


def checks_page(checks: tuple[Check, ...], glyphs: Glyphs) -> Content:
    """Return the checks that did not pass first, each with evidence and what would mend it; then those that did."""
    if not checks:
        return Content.assemble(("No check has run yet.", MUTED))
    looks = {
        "failed": (glyphs.failed, BAD),
        "warning": (glyphs.warning, WARN),
        "unchecked": (glyphs.off, ACCENT),
        "passed": (glyphs.done, GOOD),
    }
    order = {status: place for place, status in enumerate(looks)}
    lines: list[Content] = []
    for check in sorted(checks, key=lambda check: order.get(check.status, 0)):
        sign, style = looks.get(check.status, (glyphs.warning, WARN))
        evidence = f"  {check.evidence}" if check.evidence else ""
        lines.append(Content.assemble((f"{sign} {check.status:<9} ", style), check.name, (evidence, MUTED)))
        if check.fix:
            lines.append(Content.assemble(("            to mend it: ", MUTED), check.fix))
    return Content("\n").join(lines)


def changes_page(trial: Trial, detail: Detail) -> Content:
    """Return what the candidate changes, and every move so far with its cause."""
    lines: list[Content] = [Content.assemble(("What the candidate changes", f"bold {MUTED}"))]
    lines += _settings("--", detail.flags) + _settings("", detail.env)
    if len(lines) == 1:
        lines.append(Content("  nothing: the same unit again"))
    if detail.note:
        lines.append(Content.assemble(("  note: ", MUTED), detail.note))
    lines += [Content(""), Content.assemble(("What happened", f"bold {MUTED}"))]
    lines.append(Content.assemble((f"  {clock_time(moment(trial.created_at))}  ", MUTED), "queued"))
    for step in detail.history:
        cause = f": {step.cause}" if step.cause else ""
        at = f"  {clock_time(moment(step.at))}  "
        lines.append(Content.assemble((at, MUTED), f"{step.state:<18} ", (f"{step.trigger}{cause}", MUTED)))
    return Content("\n").join(lines)


def _settings(prefix: str, values: Mapping[str, object]) -> list[Content]:
    return [
        Content.assemble(f"  {prefix}{clean(name)} ", (value_words(str(name), value), ACCENT))
        for name, value in values.items()
    ]
