"""No point at which a crash could hurt is forgotten: a path must pass what the code names, or a reason stands there."""

import ast
import re
from pathlib import Path

from specd.services.effect import effect
from states import events
from states.table import State
from tests.rig.known_points import BY_PATH, ELSEWHERE

ROOT = Path(__file__).parents[2] / "specd"
KNOWN = frozenset().union(*BY_PATH.values()) | ELSEWHERE.keys()
FACT = re.compile(r"""(?:ctx|self)\.put\(\s*f?"([a-z.]+)|put_fact\([^,]+,\s*f?"([a-z.]+)""")
ARTEFACT = re.compile(r"""put_artefact\([^,]+,\s*"([a-z.]+)""")
SEAMS = {
    "specd/services/systemd/scope.py",
    "specd/services/embedded_link.py",
    "specd/services/embedded.py",
    "specd/phases/stand_in.py",
}


def sources() -> dict[str, str]:
    return {str(path.relative_to(ROOT.parent)): path.read_text() for path in ROOT.rglob("*.py")}


def test_every_fact_and_artefact_is_on_a_path() -> None:
    text = "\n".join(sources().values())
    facts = {f"commit fact {''.join(found)}" for found in FACT.findall(text)}
    artefacts = {f"commit artefact {name}" for name in ARTEFACT.findall(text)}
    assert len(facts) > 10
    missing = {name for name in facts | artefacts if not any(known.startswith(name) for known in KNOWN)}
    assert not missing, f"name the path that passes them in tests/rig/known_points.py: {missing}"


def test_every_move_and_every_event_is_on_a_path() -> None:
    moves = {f"commit move {state.value}" for state in State}
    kinds = {name for name, kind in vars(events).items() if isinstance(kind, type) and issubclass(kind, events.Event)}
    told = {f"commit event {name}" for name in kinds - {"Event"}}
    assert not (moves | told) - KNOWN


def test_nothing_is_changed_on_a_host_but_through_the_seams_that_name_it() -> None:
    """A call of a host's write or remove, or a changing systemctl, outside of them would have no failpoint."""
    changing = {"write", "remove"}
    for name, text in sources().items():
        if not name.startswith(("specd/services/", "specd/phases/")) or name in SEAMS:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in changing:
                owner = ast.unparse(node.func.value)
                assert not owner.endswith("host"), f"{name}:{node.lineno} changes a host past the seam: {owner}"


def test_each_commit_is_a_named_one() -> None:
    for name, text in sources().items():
        if name.startswith("specd/store/") and name not in {"specd/store/database.py", "specd/store/schema.py"}:
            assert "COMMIT" not in text, name
            assert "BEGIN" not in text, name


def test_names_hold_no_trial() -> None:
    with effect("start", "specd-261201-abcde.service"), effect("write", "/run/systemd/system/specd-guard-x.timer"):
        pass
