"""The line of every key in every way TOML can write it, and the bare nulls outside of strings."""

import textwrap
from typing import Any

import tomli
from hypothesis import given
from hypothesis import strategies as st

from specd.config.scan import KeyPath, dotted, scan


def lines_of(text: str) -> dict[str, int]:
    return {dotted(path): line for path, line in scan(text).lines.items()}


def test_every_way_to_write_a_key() -> None:
    text = textwrap.dedent(
        '''\
        # comment with [brackets] = "and quotes
        top = 1
        a.b . "c d" = { x = 1, y.z = [ 1,
          2, # ] not the end
          { deep = """
        multi = line
        """ } ] }
        long = """first
        [not.a.table]
        key = 3 \\""" still""""
        literal = \'\'\'
        # no comment
        x = 1\'\'\'

        [table.sub]
        k = 'it''s' # broken on purpose below
        '''
    ).replace("'it''s'", "'its'")
    assert lines_of(text) == {
        "top": 2,
        "a": 3,
        "a.b": 3,
        'a.b."c d"': 3,
        'a.b."c d".x': 3,
        'a.b."c d".y': 3,
        'a.b."c d".y.z': 3,
        'a.b."c d".y.z[0]': 3,
        'a.b."c d".y.z[1]': 4,
        'a.b."c d".y.z[2]': 5,
        'a.b."c d".y.z[2].deep': 5,
        "long": 8,
        "literal": 11,
        "table": 15,
        "table.sub": 15,
        "table.sub.k": 16,
    }


def test_arrays_of_tables_count_and_their_subtables_belong_to_the_last() -> None:
    text = "[[trial]]\nname=1\n[trial.flags]\nx=1\n[[trial.part]]\n[[trial.part]]\ny=1\n[[trial]]\n[trial.flags]\nz=1\n"
    lines = lines_of(text)
    assert lines["trial[0].flags.x"] == 4
    assert lines["trial[0].part[1].y"] == 7
    assert lines["trial[1]"] == 8
    assert lines["trial[1].flags.z"] == 10
    assert "trial[0].flags.z" not in lines


def test_a_table_declared_after_its_child_is_found_at_its_own_header() -> None:
    assert lines_of("[a.b]\nx=1\n[a]\ny=1\n")["a"] == 3


def test_the_line_of_a_missing_key_is_that_of_the_table_around_it() -> None:
    found = scan("[a]\n[hosts.x]\ny=1\n")
    assert found.line(("hosts", "x", "unit", "deeper")) == 2
    assert found.line(("nowhere",)) == 0


def test_windows_line_ends_count_once() -> None:
    assert lines_of("a = 1\r\nb = 2\r\n[c]\r\nd = 3\r\n") == {"a": 1, "b": 2, "c": 3, "c.d": 4}


def test_bare_nulls_are_found_and_others_are_not() -> None:
    text = 'null = 1\nx = null\ny = "null" # = null\nz = [null, { null = null }]\nw = """\nv = null\n"""\nu = nullify\n'
    assert [text.count("\n", 0, at) + 1 for at in scan(text).nulls] == [2, 4, 4]
    assert all(text[at : at + 4] == "null" for at in scan(text).nulls)


def test_a_broken_text_ends_the_scan_without_an_error() -> None:
    for broken in (
        "a = 1\nb = [1, 2\nc",
        "a = 1\n[t",
        'a = 1\n"x',
        "a = 1\n= 2",
        "a = 1\nb = {c = 1, ,}",
        'a = 1\nb = "',
    ):
        assert lines_of(broken)["a"] == 1
    assert lines_of("a = " + "[" * 100_000) != {}


def paths_in(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return ({path} if path else set()).union(*(paths_in(item, (*path, key)) for key, item in inner), set())


_KEYS = st.sampled_from(["a", "b-c", "null", "nan", "true", "0"])
_SCALARS = st.sampled_from(
    ['"x # y"', "'#]}'", '"""a\n"b" = """', "1", "true", "-1.5e3", "07:32:00", "1979-05-27 07:32:00"]
)


def _inline(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.dictionaries(_KEYS, children, max_size=3)
    table = pairs.map(lambda items: "{" + ", ".join(f"{key} = {value}" for key, value in items.items()) + " }")
    return table | st.lists(children, max_size=3).map(lambda items: "[ # c ]\n" + ",\n".join(items) + "\n]")


_VALUES = st.recursive(_SCALARS, _inline, max_leaves=8)
_BODY = st.dictionaries(_KEYS, _VALUES, max_size=3).map(
    lambda items: "".join(f"{key} = {value} # {key}\n" for key, value in items.items())
)


@given(st.lists(st.tuples(st.booleans(), st.lists(_KEYS, min_size=1, max_size=3), _BODY), max_size=4))
def test_the_scan_finds_exactly_the_keys_that_tomli_finds(tables: list[tuple[bool, list[str], str]]) -> None:
    text = ""
    for is_array, key, body in tables:
        header = ".".join(key)
        longer = text + (f"[[{header}]]\n" if is_array else f"[{header}]\n") + body
        try:
            tomli.loads(longer)
        except tomli.TOMLDecodeError:
            continue
        text = longer
    assert set(scan(text).lines) == paths_in(tomli.loads(text))
