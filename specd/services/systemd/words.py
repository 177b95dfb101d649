"""Command lines as systemd writes and expands them: encoding words for ExecStart=, and its $VARIABLE expansion."""

import re
from collections.abc import Callable, Iterable, Sequence

from specd.errors import UnitError

__all__ = [
    "MAX_WORD_BYTES",
    "check_text",
    "check_total",
    "encode_command",
    "encode_word",
    "executable_problem",
    "expand_variables",
    "is_utf8",
    "simplify_path",
    "split_value",
]

# The kernel's MAX_ARG_STRLEN, its closing NUL included: a longer word makes exec fail (status 203).
MAX_WORD_BYTES = 128 * 1024 - 1
# systemd reads a logical line of at most 1 MiB; a little is left for the key and the continuation marks.
MAX_LINE_BYTES = 1024 * 1024 - 4096

# A quarter of the usual limit of the stack is the kernel's limit for all words and variables of a process; a little is
# left for those that systemd adds.
_MAX_BLOCK_BYTES = 2 * 1024 * 1024 - 64 * 1024

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@+-]+")
# Surrogates, and the code points that Unicode keeps from being characters.
_NOT_TAKEN = re.compile(
    "[\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
_WHITESPACE = " \t\n\r"


def check_text(text: str, what: str) -> None:
    """Raise UnitError when a word or value can't pass through systemd and the kernel unchanged."""
    if "\0" in text:
        raise UnitError(f"{what} contains a NUL character")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UnitError(f"{what} is not valid UTF-8, which systemd does not take") from error
    if size > MAX_WORD_BYTES:
        raise UnitError(f"{what} has {size} bytes; the kernel takes at most {MAX_WORD_BYTES} in one word")
    if odd := _NOT_TAKEN.search(text):
        raise UnitError(f"{what} contains U+{ord(odd[0]):04X}, which systemd does not count as valid UTF-8")


def check_total(words: Iterable[str]) -> None:
    """Raise UnitError when a command line and environment (as NAME=value) together are more than the kernel takes."""
    size = sum(len(word.encode(errors="surrogatepass")) + 9 for word in words)
    if size > _MAX_BLOCK_BYTES:
        raise UnitError(
            f"the command line and environment have {size} bytes; a process gets {_MAX_BLOCK_BYTES} at most"
        )


def is_utf8(text: str) -> bool:
    """Whether systemd counts a text as valid UTF-8; undecodable bytes stand in it as surrogates."""
    return _NOT_TAKEN.search(text) is None


def encode_word(word: str, *, variables: bool = True) -> str:
    """Write one literal word so that systemd, after unquoting and all expansion, arrives at exactly `word`.

    `variables` is false for settings in which systemd expands no $VARIABLES (all but Exec*=).
    """
    if _PLAIN.fullmatch(word):
        return word
    out = ['"']
    for char in word:
        if char in '"\\':
            out.append("\\" + char)
        elif char == "%" or (char == "$" and variables):
            out.append(char * 2)
        elif char < " " or char == "\x7f":
            out.append(f"\\x{ord(char):02x}")
        else:
            out.append(char)
    out.append('"')
    return "".join(out)


def executable_problem(path: str) -> str:
    """Say why systemd would not take `path` as the program of a command; "" when it would."""
    if not path:
        return "it is empty"
    if any(char < " " or char in "\"'\\\x7f" for char in path):
        return "systemd takes no quotes, backslashes or control characters in it"
    if path[0] in "-@:+!|" or path.endswith("/"):
        return "it can't be told from a prefix, or names a directory"
    if "/" in path and not path.startswith("/"):
        return "it is a relative path"
    if len(path.encode()) >= 4096:
        return "it is too long"
    return ""


def simplify_path(path: str) -> str:
    """Return a path as systemd stores it: repeated slashes and `.` parts gone."""
    if not path.startswith("/"):
        return path
    return "/" + "/".join(part for part in path.split("/") if part not in {"", "."})


def encode_command(argv: Sequence[str], *, path: str = "", prefix: str = "") -> str:
    """Write a command as the value of ExecStart=, one word a line.

    `path` is the program when it is not what argv[0] says; `prefix` holds `+`, `!` or `!!`. Raises UnitError for what
    can't be expressed.
    """
    if not argv:
        raise UnitError("the command is empty")
    program = path or argv[0]
    if problem := executable_problem(program):
        raise UnitError(f"the program {program!r} can't stand in a unit: {problem}")
    for place, word in enumerate(argv):
        check_text(word, f"word {place} of the command")
    # Without @ the process gets the path, simplified, as its argv[0].
    own_name = argv[0] != simplify_path(program)
    head = encode_word(("@" if own_name else "") + prefix + program)
    words = [*([encode_word(argv[0])] if own_name else []), *(encode_word(word) for word in argv[1:])]
    value = " \\\n    ".join([head, *words])
    if len(value.encode()) > MAX_LINE_BYTES:
        raise UnitError(f"the command has {len(value.encode())} bytes; systemd reads lines of at most 1 MiB")
    return value


def split_value(value: str) -> list[str]:
    """Split a variable's value as systemd does for a bare $NAME: quotes group and go, a backslash quotes one
    character."""
    words: list[str] = []
    at = 0
    while True:
        while at < len(value) and value[at] in _WHITESPACE:
            at += 1
        if at >= len(value):
            return words
        word, at = _one_word(value, at)
        words.append(word)


def _one_word(value: str, at: int) -> tuple[str, int]:
    out: list[str] = []
    quote = ""
    while at < len(value):
        char = value[at]
        at += 1
        if char == "\\":
            if at < len(value):
                out.append(value[at])
            at += 1
        elif quote:
            if char == quote:
                quote = ""
            else:
                out.append(char)
        elif char in "'\"":
            quote = char
        elif char in _WHITESPACE:
            break
        else:
            out.append(char)
    return "".join(out), at


def expand_variables(argv: Sequence[str], value_of: Callable[[str], str]) -> list[str]:
    """Expand $NAME words and ${NAME} parts as systemd does when it runs a command.

    A word that is $NAME vanishes or is split; ${NAME} is put in as it is, empty when unset; $$ is one dollar sign.
    """
    out: list[str] = []
    for word in argv:
        if word.startswith("$") and word[1:2] not in {"{", "$"}:
            out.extend(split_value(value_of(word[1:])))
        else:
            out.append(_expand_word(word, value_of))
    return out


def _expand_word(word: str, value_of: Callable[[str], str]) -> str:
    out: list[str] = []
    kept = at = 0
    while at < len(word):
        if word[at] != "$":
            at += 1
        elif word[at + 1 : at + 2] == "$":
            out.append(word[kept : at + 1])
            kept = at = at + 2
        elif word[at + 1 : at + 2] == "{":
            end = at + 2
            while end < len(word) and word[end] not in "}:":
                end += 1
            if word[end : end + 1] == "}":
                out += [word[kept:at], value_of(word[at + 2 : end])]
                kept = end + 1
            elif end == len(word):
                # An unclosed ${ swallows the rest of the scan, not of the text.
                return "".join(out) + word[kept:]
            at = end + 1
        else:
            at += 2
    return "".join(out) + word[kept:]
