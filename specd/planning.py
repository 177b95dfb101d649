"""The dry run: what a trial would change and whether it would go, read from the host and told; nothing is written."""

import dataclasses
import difflib
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from specd.checks import Check, CheckStatus, failures
from specd.engines.masking import MASK, is_secret_name
from specd.errors import HostError, SpecdError
from specd.phases.baseline import preflight
from specd.phases.context import Baseline, Context
from specd.phases.verify import candidate_checks
from specd.phases.write_unit import unit_diff
from specd.settings import TrialSpec
from specd.store import Store
from states.table import CANDIDATE_OWNS, State

__all__ = ["expected_outage_s", "plan_trial"]


async def plan_trial(spec: TrialSpec, make_context: Callable[[TrialSpec], Context], store: Store) -> dict[str, Any]:
    """Return one trial's plan as `plan --json` shows it; trouble on the host becomes a failed check."""
    # A rehearsal's stand-in is not there yet; what it will be made from is.
    ctx = make_context(dataclasses.replace(spec, rehearsal=False))
    answer: dict[str, Any] = {
        "trial": {"name": spec.name, "service": spec.service, "host": ctx.service.host},
        "unit_diff": "",
        "argv_diff": [],
        "env_diff": [],
        "baseline": {"unit": ctx.service.unit, "invocation": None},
        "expected_outage_s": expected_outage_s(store, spec.service),
    }
    try:
        checks, baseline = await preflight(ctx)
        if baseline is not None:
            checks += await _change(ctx, baseline, answer)
    except SpecdError as error:
        name = "host.reachable" if isinstance(error, HostError) else f"{error.code}.read"
        checks = [Check.failed(name, ctx.mask(error.what), error.next_step)]
    answer["checks"] = [
        {**check.as_json(), "evidence": ctx.mask(check.evidence), "fix": ctx.mask(check.fix)} for check in checks
    ]
    answer["ok"] = not failures(checks)
    return answer


async def _change(ctx: Context, baseline: Baseline, answer: dict[str, Any]) -> list[Check]:
    answer["baseline"]["invocation"] = baseline.status.invocation
    try:
        candidate = ctx.render_candidate(baseline)
    except SpecdError as error:
        return [Check.failed("candidate.render", error.what, error.next_step)]
    answer["unit_diff"] = ctx.mask(unit_diff(baseline.facts.text, candidate.content.decode(errors="replace")))
    answer["argv_diff"] = [ctx.mask(line) for line in _argv_diff(baseline.facts.argv, candidate.argv)]
    answer["env_diff"] = [ctx.mask(line) for line in _env_diff(baseline.facts.environment, candidate.environment)]
    checks = await candidate_checks(ctx, baseline, candidate)
    checks.append(Check(name="unit.analyze", status=CheckStatus.UNCHECKED, evidence="judged once the unit is written"))
    return checks


def _argv_diff(before: tuple[str, ...], after: tuple[str, ...]) -> list[str]:
    """Return the words that go (`- word`) and come (`+ word`), in place."""
    return [line for line in difflib.ndiff(list(before), list(after)) if line[:2] in {"- ", "+ "}]


def _env_diff(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the variables that go (`- NAME=value`) and come (`+ NAME=value`), those with a secret's name without
    it."""
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            told = [(sign, env[name]) for sign, env in (("-", before), ("+", after)) if name in env]
            lines += [f"{sign} {name}={MASK if is_secret_name(name) else value}" for sign, value in told]
    return lines


def expected_outage_s(store: Store, service: str) -> float | None:
    """Return how long the service would not serve its baseline, by its recent trials; None without any."""
    found = store.durations(service)
    away = [statistics.median(found[state]) for state in (*CANDIDATE_OWNS, State.ROLLBACK) if found.get(state)]
    return sum(away) if State.ROLLBACK in found and State.LOADING in found else None
