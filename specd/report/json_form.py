"""The report as JSON: the trials as `show --json` gives them."""

import json
from collections.abc import Sequence

from specd.report.rows import Trial

__all__ = ["as_json"]


def as_json(trials: Sequence[Trial]) -> str:
    """Return {"trials": [...]}."""
    return json.dumps({"trials": list(trials)}, indent=2) + "\n"
