"""The unit file's form, and the lists it makes."""

import json

import pytest

from specd.supervisor.unit import (
    BadUnit,
    UnitFile,
    normal_name,
    parse_environment_file,
    parse_unit,
    read_environment,
    render_unit,
)

PATH = "/units/llm.service.json"


def parse(**keys: object) -> UnitFile:
    return parse_unit("llm.service", json.dumps({"argv": ["/bin/true"], **keys}).encode(), PATH)


def test_a_rendered_unit_reads_back_the_same() -> None:
    argv = ("/bin/srv", '{"a": "x y", "b": [1, 2]}', "$HOME %n", "ünï\tcode\n", "")
    unit = UnitFile(
        name="specd-1.service",
        path=PATH,
        digest="",
        argv=argv,
        description="a trial",
        environment={"A": "1 2", "EMPTY": ""},
        environment_files=("-/etc/none",),
        working_directory="/srv",
        stop_timeout_s=2.5,
        trial="1",
        installation="here",
    )
    again = parse_unit("specd-1.service", render_unit(unit), PATH)
    assert again.digest
    assert render_unit(again) == render_unit(unit)
    assert again.argv == argv
    assert (again.environment, again.trial, again.installation) == (unit.environment, "1", "here")
    assert (again.restart, again.enabled, again.stop_timeout_s) == ("no", False, 2.5)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "JSON"),
        (b"[]", "object"),
        (b"{}", "argv"),
        (b'{"argv": []}', "argv"),
        (b'{"argv": [""]}', "argv"),
        (b'{"argv": "/bin/true"}', "argv"),
        (b'{"argv": ["/bin/true", 1]}', r"argv\[1\]"),
        (b'{"argv": ["/bin/true", "a\\u0000b"]}', r"argv\[1\]"),
        (b'{"argv": ["a"], "Restart": "no"}', "'Restart'"),
        (b'{"argv": ["a"], "restart": "always"}', "restart"),
        (b'{"argv": ["a"], "enabled": "yes"}', "enabled"),
        (b'{"argv": ["a"], "environment": {"A B": ""}}', "'A B'"),
        (b'{"argv": ["a"], "environment": {"A": 1}}', "environment.A"),
        (b'{"argv": ["a"], "environment_files": ["rel"]}', "environment_files"),
        (b'{"argv": ["a"], "working_directory": "rel"}', "working_directory"),
        (b'{"argv": ["a"], "stop_timeout_s": 0}', "stop_timeout_s"),
        (b'{"argv": ["a"], "stop_timeout_s": true}', "stop_timeout_s"),
        (b'{"argv": ["a"], "x_specd": {"trial": "1"}}', "x_specd"),
    ],
)
def test_a_file_that_is_not_as_it_must_be_is_refused_naming_the_key(content: bytes, named: str) -> None:
    with pytest.raises(BadUnit, match=named):
        parse_unit("llm.service", content, PATH)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-option", "a b", "a\n", "x" * 300])
def test_a_name_that_could_leave_its_directory_is_refused(name: str) -> None:
    with pytest.raises(BadUnit):
        normal_name(name)


def test_a_name_is_completed() -> None:
    assert normal_name("llm") == normal_name("llm.service") == "llm.service"


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("A=1\nB=2\n", {"A": "1", "B": "2"}),
        ("# A=1\n; B=2\n\n  C=3", {"C": "3"}),
        ("A=1 # not a comment\n", {"A": "1 # not a comment"}),
        ("export A=1\nB=2\n", {"B": "2"}),
        ("A= spaced  \n", {"A": "spaced"}),
        ('A="two words "\n', {"A": "two words "}),
        ("A='a\"b\\n'\n", {"A": 'a"b\\n'}),
        ('A="{\\"k\\": \\"v\\"}"\n', {"A": '{"k": "v"}'}),
        ("A='{\"k\": 1}'\n", {"A": '{"k": 1}'}),
        ("A=$HOME/x\n", {"A": "$HOME/x"}),
        ("A=one\\\ntwo\nB=3\n", {"A": "onetwo", "B": "3"}),
        ('A="line one\nline two"\n', {"A": "line one\nline two"}),
        ("A=1\nA=2\n", {"A": "2"}),
        ("no equals sign\nA=\n", {"A": ""}),
        ("A=a=b\r\n", {"A": "a=b"}),
    ],
)
def test_environment_files_are_read_by_systemds_rules(text: str, variables: dict[str, str]) -> None:
    assert parse_environment_file(text) == variables


def test_files_come_after_settings_and_only_a_dash_lets_one_be_missing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("env")
    (directory / "one").write_text("A=from file\nB=b\n")
    missing = str(directory / "none")
    unit = parse(environment={"A": "setting", "C": "c"}, environment_files=[str(directory / "one"), "-" + missing])
    environment, digests = read_environment(unit)
    assert environment == {"A": "from file", "B": "b", "C": "c"}
    assert list(digests) == [str(directory / "one")]
    with pytest.raises(BadUnit, match="is missing"):
        read_environment(parse(environment_files=[missing]))
