"""The script and the fault grammar: defaults, and errors that say what was meant."""

from pathlib import Path

import pytest

from specd.rehearsal.faults import FaultError, parse
from specd.rehearsal.script import Script, ScriptError, from_mapping, load


def test_nothing_set_means_defaults() -> None:
    script, faults = load({})
    assert script == Script()
    assert not faults.by_kind
    assert sum(script.stage_s(stage) for stage in ("import", "config", "engine", "weights")) == pytest.approx(1.7)


def test_inline_and_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('{"shards": 7, "stages": {"weights": 2}, "time_scale": 0.5}')
    from_file, _ = load({"SPECD_REHEARSAL": str(path)})
    inline, _ = load({"SPECD_REHEARSAL": path.read_text()})
    assert from_file == inline
    assert (from_file.shards, from_file.stage_s("weights"), from_file.stage_s("import")) == (7, 1.0, 0.1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"shard": 3}, "unknown key 'shard'; did you mean 'shards'?"),
        ({"stages": {"weight": 1}}, "stages: unknown stage 'weight'; did you mean 'weights'?"),
        ({"stages": {"weights": "x"}}, "stages.weights: 'x' is not a number of seconds"),
        ({"bar": "returns"}, "bar: 'returns' is not one of newline, cr"),
        ({"tokens_per_chunk": 3}, "tokens_per_chunk: 3 is not one of 1, 2, 4, 8, 16"),
        ({"shards": 0}, "shards: 0 is not between 1 and 10000"),
        ({"shards": True}, "shards: expected int, not True"),
        ({"acceptance": 1.5}, "acceptance: expected null, a rate or a list of rates"),
        ({"answer_tokens": [5, 2]}, "answer_tokens: expected [lowest, highest]"),
    ],
)
def test_mistakes_are_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(ScriptError) as caught:
        from_mapping(values)
    assert words in str(caught.value)


def test_all_mistakes_come_at_once() -> None:
    with pytest.raises(ScriptError) as caught:
        from_mapping({"shard": 1, "bar": "x", "shards": -1})
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("text", ["{", "[1]", "/no/such/file.json"])
def test_unreadable_scripts(text: str) -> None:
    with pytest.raises(ScriptError, match="SPECD_REHEARSAL"):
        load({"SPECD_REHEARSAL": text})


def test_faults_from_both_places_add_up() -> None:
    environ = {"SPECD_REHEARSAL": '{"faults": "no-usage"}', "SPECD_REHEARSAL_FAULT": "die:weights:0, slow-stop:2.5"}
    _, faults = load(environ)
    assert faults.has("no-usage")
    assert faults.at("weights") == ("die", "0")
    assert faults.at("compile") is None
    assert faults.number("slow-stop", 0) == 2.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dye:weights", "unknown fault 'dye'; did you mean 'die'?"),
        ("die", "expected die:stage:status?"),
        ("die:wieghts", "unknown stage 'wieghts'; did you mean 'weights'?"),
        ("die:weights:300", "'300' is not a status"),
        ("slow-stop:soon", "'soon' is not a number of seconds"),
        ("slow-stop:-1", "'-1' is not a number of seconds"),
        ("no-token:1", "expected no-token"),
        ("garbage:noise", "'noise' is not one of loop, replacement"),
        ("error-in-stream:x", "'x' is not a count"),
    ],
)
def test_fault_grammar(text: str, words: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse(text)
    assert words in str(caught.value)
