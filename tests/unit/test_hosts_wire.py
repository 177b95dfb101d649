"""Frames, lines and the encoding of arguments."""

import itertools
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import HostError
from specd.hosts.wire import Frame, Lines, command_line, environment_line

TOKEN = "0123456789abcdef"
BEGIN = f"specd-begin-{TOKEN} 4711\n".encode()


def end(status: int = 0) -> bytes:
    return f"specd-end-{TOKEN} {status}\n".encode()


def fed(frame: Frame, stream: bytes, cuts: list[int]) -> bytes:
    """Feed a stream in pieces and return what came out."""
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return b"".join(frame.feed(stream[start:stop]) for start, stop in itertools.pairwise(edges))


@given(
    banner=st.binary(max_size=60),
    printed=st.one_of(st.binary(max_size=200), st.sampled_from([end()[:-3], b"specd-end-", BEGIN, b"s" * 50])),
    after=st.binary(max_size=40),
    status=st.integers(0, 255),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
)
def test_frame_gives_what_was_printed(
    banner: bytes, printed: bytes, after: bytes, status: int, cuts: list[int]
) -> None:
    frame = Frame(TOKEN)
    assert fed(frame, banner + BEGIN + printed + end(status) + after, cuts) == printed
    assert (frame.pid, frame.status) == (4711, status)


@given(printed=st.binary(max_size=100), cuts=st.lists(st.integers(0, 1000), max_size=5))
def test_frame_without_an_end_has_no_status(printed: bytes, cuts: list[int]) -> None:
    frame = Frame(TOKEN)
    out = fed(frame, b"banner" + BEGIN + printed + end()[:-1], cuts)
    assert frame.status is None
    assert out == printed


def test_output_is_not_held_back_for_long() -> None:
    frame = Frame(TOKEN)
    assert frame.feed(BEGIN + b"line\n") == b"line\n"
    assert frame.feed(b"specd") == b""
    assert frame.feed(b" is a name\n") == b"specd is a name\n"


def test_noise_is_kept_only_at_its_end() -> None:
    frame = Frame(TOKEN)
    frame.feed(b"x" * 100_000 + b"not available")
    assert frame.noise.endswith("not available")
    assert len(frame.noise) < 10_000
    frame.feed(BEGIN)
    assert frame.noise == ""


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=12),
    rest=st.binary(max_size=10).map(lambda line: line.replace(b"\n", b"")),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
)
def test_lines(lines: list[bytes], rest: bytes, cuts: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in lines) + rest
    cutter = Lines()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    found = [line for start, stop in itertools.pairwise(edges) for line in cutter.feed(stream[start:stop])]
    assert found == lines
    assert cutter.end() == ([rest] if rest else [])
    assert cutter.end() == []


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_no_shell_finds_anything_to_alter(argv: list[str]) -> None:
    line = command_line(argv, TOKEN, feeds_input=False)
    assert line.isascii()
    assert not set(line) & set("\n\r\t!")
    words = shlex.split(line)
    assert words[:3] == ["exec", "/bin/sh", "-c"]
    assert len(words) == 4 + 1 + 2 + len(argv)
    assert "\\\\" not in line
    assert "\\'" not in line


def test_constant_script_does_not_depend_on_values() -> None:
    scripts = {
        shlex.split(command_line([value], TOKEN, feeds_input=feeds, env=env))[3]
        for value in ("a", "'; rm -rf /", "$(reboot)")
        for feeds in (True, False)
        for env in (None, {"A": "$(reboot)"})
    }
    assert len(scripts) == 1
    assert "reboot" not in scripts.pop()


def test_environment_is_one_line_of_words() -> None:
    line = environment_line({"A": "x y\n*", "B": ""})
    assert line.count(b"\n") == 1
    assert len(line.split()) == 2


def test_what_cannot_be_passed_is_refused() -> None:
    with pytest.raises(HostError, match="NUL"):
        command_line(["a\0"], TOKEN, feeds_input=False)
    with pytest.raises(HostError, match="NUL"):
        environment_line({"A": "\0"})
    with pytest.raises(HostError, match="too long"):
        command_line(["echo", "\n" * 40_000], TOKEN, feeds_input=False)
