"""One check and its result: the form in which preflight, verify and plan say what they proved."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

__all__ = ["Check", "CheckStatus", "failures"]


class CheckStatus(Enum):
    """What a check found; `unchecked` is said, never hidden."""

    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class Check:
    """A check's stable dotted `name`, its status, the evidence (masked of secrets) and what would mend it."""

    name: str
    status: CheckStatus
    evidence: str = ""
    fix: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form: status as its word."""
        return {**asdict(self), "status": self.status.value}

    @classmethod
    def passed(cls, name: str, evidence: str = "") -> "Check":
        return cls(name, CheckStatus.PASSED, evidence)

    @classmethod
    def failed(cls, name: str, evidence: str, fix: str = "") -> "Check":
        return cls(name, CheckStatus.FAILED, evidence, fix)

    @classmethod
    def warning(cls, name: str, evidence: str, fix: str = "") -> "Check":
        return cls(name, CheckStatus.WARNING, evidence, fix)

    @classmethod
    def unchecked(cls, name: str, evidence: str, fix: str = "") -> "Check":
        return cls(name, CheckStatus.UNCHECKED, evidence, fix)


def failures(checks: list[Check]) -> list[Check]:
    """Return the failed ones."""
    return [check for check in checks if check.status is CheckStatus.FAILED]
