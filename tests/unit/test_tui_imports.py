"""What the console pulls in, deferred imports included, and that its table of actions is whole."""

import subprocess
import sys

import pytest

from tui.actions import ACTIONS, Scope
from tui.screens.help import help_page

_PROBE = "import sys; import {module}; print(*sorted(n for n in {names!r} if n in sys.modules))"


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("tui.__main__", ["textual", "aiohttp", "asyncio", "specd", "transitions"]),
        ("tui.model", ["textual", "aiohttp", "asyncio", "specd", "transitions"]),
        ("tui.timeline", ["textual", "aiohttp", "asyncio", "specd"]),
        ("tui.app", ["specd", "transitions", "asyncssh", "sqlite3"]),
    ],
)
def test_a_module_pulls_in_nothing_it_should_not(module: str, forbidden: list[str]) -> None:
    code = _PROBE.format(module=module, names=forbidden)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


def test_no_key_means_two_things_in_one_place() -> None:
    for own in (Scope.TRIALS, Scope.SERVICES, Scope.TRIAL):
        keys = [key for action in ACTIONS if action.scope in (own, Scope.EVERYWHERE) for key in action.keys]
        assert sorted(keys) == sorted(set(keys))


def test_every_action_has_a_sentence_and_is_on_the_help_page() -> None:
    page = help_page().plain
    for action in ACTIONS:
        assert action.sentence
        assert action.sentence in page


def test_the_command_line_tells_its_version_and_refuses_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    from tui.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main(["--theme", "pink"])
    assert ended.value.code == 2
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("specd-tui ")
    assert main(["--socket", "http://localhost:1", "--token-file", "/nowhere"]) == 2
    assert "the token file /nowhere can't be read" in capsys.readouterr().err
    assert main(["--socket", "/nowhere"]) == 2
    assert "this is no terminal" in capsys.readouterr().err
