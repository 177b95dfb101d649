"""The lock file sets up the same environment on any machine."""

import re
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


def locked() -> dict[str, str]:
    lines = (REPO / "requirements-dev.lock").read_text().splitlines()
    pins = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines if not line.startswith("#")]
    assert None not in pins, "no paths, no addresses, no ranges"
    return {canonical(pin[1]): pin[2] for pin in pins if pin}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("group", ["dependencies", "dev"])
def test_what_the_project_pins_is_what_is_installed(group: str) -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] if group == "dependencies" else project["dependency-groups"]["dev"]
    pins = locked()
    for requirement in wanted:
        name, _, version = requirement.partition("==")
        assert pins[canonical(name)] == version
