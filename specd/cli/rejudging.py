"""Judging stored samples anew, by another policy than the one that decided."""

from collections.abc import Mapping
from typing import Any

from specd.bench.judge import compare
from specd.bench.plan import LevelDone
from specd.cli.text import clean
from specd.config import parse_config
from specd.errors import ConfigError, UsageError
from specd.settings import Policy

__all__ = ["policy_from", "rejudged"]

_FRAME = '[hosts.h]\n[services.s]\nhost = "h"\nunit = "u"\n[services.s.policy]\n'


def policy_from(text: str, base: Mapping[str, Any]) -> Policy:
    """Return a policy with some keys changed (`metric=ttft,margin=0.05`); raises UsageError with all that is wrong."""
    pairs = {key.strip(): value.strip() for key, _, value in (part.partition("=") for part in text.split(",")) if key}
    lines = {key: value if _is_toml(value) else f'"{value}"' for key, value in pairs.items()}
    try:
        given = parse_config(_FRAME + "".join(f"{key} = {value}\n" for key, value in lines.items()), "--policy")
    except ConfigError as error:
        problems = "; ".join(f"{problem.key.rpartition('.')[2]}: {problem.text}" for problem in error.problems)
        raise UsageError(f"--policy: {problems}") from None
    policy = given.services["s"].policy
    kept = {key: value for key, value in base.items() if key not in pairs and hasattr(policy, key)}
    return Policy(**{**{key: getattr(policy, key) for key in pairs}, **kept})


def rejudged(trial: Mapping[str, Any], levels: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return a trial with the comparison that another policy gives; one without samples is left as it is."""
    sides = {side: [_level(body) for body in levels.get(side) or []] for side in ("baseline", "candidate")}
    if not all(sides.values()):
        return dict(trial)
    found = compare(sides["baseline"], sides["candidate"], policy_from(text, levels.get("policy") or {}))
    outcome, said = found.outcome, found.reason
    if trial.get("failure") and trial.get("outcome") == "invalid":
        # Found in what the engine counted, which is not part of the samples: no policy makes it valid.
        outcome, said = "invalid", clean(trial.get("reason") or "")
    reason = f"{said} (judged anew by {clean(text)}; it was {trial.get('outcome')})"
    body = {**found.as_json(), "outcome": outcome, "reason": reason}
    return {**trial, "comparison": body, "outcome": outcome, "reason": reason}


def _level(body: Mapping[str, Any]) -> LevelDone:
    return LevelDone.from_json({**body, "metrics_before": "", "metrics_after": ""})


def _is_toml(value: str) -> bool:
    return value in {"true", "false"} or value.replace(".", "", 1).replace("-", "", 1).isdigit()
