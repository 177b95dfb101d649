"""Logs in the forms that engines print: each has its class, or none."""

from dataclasses import dataclass
from typing import Any

import pytest
import tomli

from specd.engines import by_name
from specd.engines.exits import explain, log_end
from tests.corpus import HERE


@dataclass(frozen=True)
class Log:
    name: str
    text: str
    kind: str
    says: str = ""
    engine: str = "vllm"
    status: int = 1


def logs(file: str) -> list[Log]:
    entries: list[dict[str, Any]] = tomli.loads((HERE / "failures" / file).read_text(encoding="utf-8"))["log"]
    return [Log(**entry) for entry in entries]


def verdict(log: Log) -> tuple[str, str]:
    """Return class and sentence: as read while it runs for no failure, as read at its end otherwise."""
    reader = by_name(log.engine).reader()
    for line in log.text.strip("\n").split("\n"):
        reader.feed(line)
    if not log.kind:
        failure = reader.failure()
        return ("", "") if failure is None else (failure.kind, failure.sentence)
    failure = explain(log_end(reader), result="exit-code", code="exited", status=log.status)
    return failure.kind, failure.sentence


@pytest.mark.parametrize("log", logs("logs.toml"), ids=lambda log: log.name)
def test_each_log_has_its_class_or_none(log: Log) -> None:
    kind, sentence = verdict(log)
    assert (kind, log.says in sentence) == (log.kind, True), sentence
