"""Words of a command line as systemd expands and reads them; expected is what systemd 252 did with the same text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import UnitError
from specd.services.systemd.envfile import encode_environment, parse_environment
from specd.services.systemd.specifier import UnitName, resolve_name_specifiers
from specd.services.systemd.words import encode_command, encode_word, expand_variables, is_utf8, split_value

ENVIRONMENT = {"FOO": "a b  c", "EMPTY": "", "Q": 'x \'y z\' "u\\" v" w\\ w'}


@pytest.mark.parametrize(
    ("written", "given"),
    [
        (["a", "$UNSET", "${UNSET}", "z"], ["a", "", "z"]),
        (["$FOO", "${FOO}", "x $FOO", "x ${FOO}"], ["a", "b", "c", "a b  c", "x $FOO", "x a b  c"]),
        (["a$HOME", "a${HOME}b"], ["a$HOME", "ab"]),
        (["$$FOO", "$${FOO}", "5$$"], ["$FOO", "${FOO}", "5$"]),
        (["a$", "$", "$$", "5$"], ["a$", "$", "5$"]),
        (["$Q"], ["x", "y z", 'u" v', "w w"]),
        (["$EMPTY", "${EMPTY}"], [""]),
        (["${FOO", "${FOO:-b}", "${A:}${FOO}"], ["${FOO", "${FOO:-b}", "${A:}a b  c"]),
        (['{"p": "$5 ${x}"}'], ['{"p": "$5 "}']),
    ],
)
def test_variables_are_expanded_as_systemd_does(written: list[str], given: list[str]) -> None:
    assert expand_variables(written, lambda name: ENVIRONMENT.get(name, "")) == given


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("--a 1  --b\t2\n", ["--a", "1", "--b", "2"]),
        ('--j \'{"a": 1}\' --x="y z"', ["--j", '{"a": 1}', "--x=y z"]),
        ("'' \"\"", ["", ""]),
        ("'open and \\' more", ["open and ' more"]),
        ("end\\", ["end"]),
    ],
)
def test_a_bare_variable_is_split(value: str, words: list[str]) -> None:
    assert split_value(value) == words


def test_words_that_need_no_quotes_have_none() -> None:
    assert encode_word("--model=/a/b.c") == "--model=/a/b.c"
    assert encode_word('{"a": "$1 50%\n\\"}') == '"{\\"a\\": \\"$$1 50%%\\x0a\\\\\\"}"'
    assert [encode_word(word) for word in ("", ";", "#x")] == ['""', '";"', '"#x"']


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20), min_size=1, max_size=8))
def test_encoded_words_never_hold_what_ends_a_line_or_starts_a_comment(words: list[str]) -> None:
    lines = " \\\n    ".join(encode_word(word) for word in words).split("\n")
    assert len(lines) == len(words)
    assert not [line for line in lines if line.strip()[:1] in {"#", ";", ""}]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ((), "empty"),
        (("/bin/x", "a\0b"), "NUL"),
        (("/bin/x", "\ud800"), "UTF-8"),
        (("/bin/x", "\ufffe"), "U\\+FFFE"),
        (("/bin/x", "x" * 131072), "at most 131071"),
        (("/bin/x", *["y" * 100_000] * 11), "1 MiB"),
        (("./x",), "relative"),
        (("-x",), "prefix"),
        (("/bin/it's",), "quotes"),
        (("/bin/",), "directory"),
    ],
)
def test_what_can_not_be_written_is_refused_with_a_reason(argv: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UnitError, match=reason):
        encode_command(argv)


def test_a_name_of_its_own_needs_the_prefix_for_it() -> None:
    assert encode_command(["/bin/a", "b"]) == "/bin/a \\\n    b"
    assert encode_command(["name", "b"], path="/bin/a") == "@/bin/a \\\n    name \\\n    b"
    assert encode_command(["/opt//x/./y"]) == "@/opt//x/./y \\\n    /opt//x/./y"
    assert encode_command(["/bin/a"], prefix="!!") == '"!!/bin/a"'


def test_environment_files_are_read_as_systemd_reads_them() -> None:
    text = """\
# c
A='{"a": 1}'
B={"a": 1}
C="{\\"a\\": 1}"
D=50% $HOME ${HOME} \\n x
E='it'\\''s'
F="x\\ny"
G=a b   c \t
H=a \\
  b
; comment
 # indented comment
export I=1
J=a#b # c
K='multi
line'
 L = spaced
1M=no
N=one'two'
"""
    assert parse_environment(text.encode()) == {
        "A": '{"a": 1}',
        "B": '{"a": 1}',
        "C": '{"a": 1}',
        "D": "50% $HOME ${HOME} n x",
        "E": "it''s'",
        "F": "x\\ny",
        "G": "a b   c",
        "H": "a   b",
        "J": "a#b # c",
        "K": "multi\nline",
        "L": "spaced",
        "N": "one'two'",
    }


def test_a_comment_that_ends_in_a_backslash_depends_on_the_version() -> None:
    text = b"# c \\\nA=1\nB=2\n"
    assert parse_environment(text, version=252) == {"B": "2"}
    assert parse_environment(text, version=254) == {"A": "1", "B": "2"}


def test_an_environment_file_that_systemd_refuses_is_no_environment_file() -> None:
    for content in (b"A=\xff\n", b"A=1\n\xe9=2\n", b"A=\xef\xbf\xbe\n"):
        with pytest.raises(ValueError, match="UTF-8"):
            parse_environment(content)
    with pytest.raises(ValueError, match="NUL"):
        parse_environment(b"A=1\n\0")
    assert parse_environment(b"# gr\xf6\xdfe\nA=1\n") == {"A": "1"}


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True),
        st.text(st.characters(codec="utf-8", exclude_characters="\0")).filter(is_utf8),
    )
)
def test_written_environment_files_read_back(values: dict[str, str]) -> None:
    assert parse_environment(encode_environment(values).encode()) == values


def test_specifiers_of_the_name_are_put_in_by_value() -> None:
    unit = UnitName("big-vllm@a\\x20b-c.service", "/etc/systemd/system/big-vllm@.service")
    assert resolve_name_specifiers("Description", "%n|%N|%p|%i|%j|%%n|%h|%", unit) == (
        "big-vllm@a\\x20b-c.service|big-vllm@a\\x20b-c|big-vllm|a\\x20b-c|vllm|%%n|%h|%"
    )
    assert resolve_name_specifiers("Environment", '"A=%I %y"', unit) == (
        '"A=a\\x20b/c /etc/systemd/system/big-vllm@.service"'
    )
    assert resolve_name_specifiers("ExecStartPre", "/bin/x %i", unit) == "/bin/x a\\x5cx20b-c"
    assert resolve_name_specifiers("WorkingDirectory", "%f", unit) == "/a b/c"


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("WorkingDirectory", r"/srv/a\x20b /srv/a b"),
        ("ExecStartPre", r"/srv/a\x5cx20b /srv/a\x20b"),
        ("ReadWritePaths", r"/srv/a\\x20b /srv/a\ b"),
        ("TemporaryFileSystem", r"/srv/a\\\\x20b /srv/a\\\ b"),
        ("SetCredential", "/srv/%i /srv/%I"),
    ],
)
def test_a_name_is_put_in_as_each_setting_takes_it(key: str, given: str) -> None:
    unit = UnitName(r"vllm@a\x20b.service")
    assert resolve_name_specifiers(key, "/srv/%i /srv/%I", unit) == given
