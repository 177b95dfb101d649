"""What a word of a shell's text becomes: quotes taken away, variables put in, split where the shell splits."""

import re

from tree_sitter import Node

__all__ = ["Expander", "Values"]

_GLOB = re.compile(r"(?<!\\)[*?\[]")
_BRACES = re.compile(r"\{[^{}]*(,|\.\.)[^{}]*\}")
_ANSI = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|[0-7]{1,3}|.)", re.DOTALL)
_ANSI_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "E": "\x1b"}
_DEFAULT = re.compile(r"\$\{(\w+)(:?)([-=])(.*)\}", re.DOTALL)


class Values:
    """The variables and arguments of a shell as far as they are known; None for one that can't be told."""

    def __init__(self, known: dict[str, str], arguments: tuple[str, ...]) -> None:
        self._known: dict[str, str | None] = dict(known)
        self._unset: set[str] = set()
        self.arguments: tuple[str, ...] | None = arguments

    def copy(self) -> "Values":
        """Return others that start out the same."""
        made = Values({}, ())
        made._known, made._unset, made.arguments = dict(self._known), set(self._unset), self.arguments
        return made

    def get(self, name: str) -> str | None:
        """Return a variable's value; None where it is not known."""
        if name in self._unset:
            return ""
        if name.isdigit():
            if self.arguments is None:
                return None
            return self.arguments[int(name)] if int(name) < len(self.arguments) else ""
        return self._known.get(name)

    def is_unset(self, name: str) -> bool:
        """True for one that is known not to be set."""
        return name in self._unset

    def set(self, name: str, value: str | None) -> None:
        """Give a variable a value."""
        self._unset.discard(name)
        self._known[name] = value

    def unset(self, name: str) -> None:
        """Take a variable away."""
        self._unset.add(name)

    def forget(self) -> None:
        """Something may have set anything."""
        self._known, self.arguments = {}, None
        self._unset.clear()


class Expander:
    """Expands the words of one text with the values known at their place."""

    def __init__(self, text: bytes, values: Values) -> None:
        self._text = text
        self._values = values

    def words(self, node: Node) -> tuple[str, ...] | None:
        """Return the words that one as written becomes, None where that can't be told."""
        if node.type == "command_name":
            return self.words(node.named_children[0]) if node.named_children else ()
        if node.type == "string" and (inner := self._only(node)) is not None and self._is_all(inner):
            return self._values.arguments[1:] if self._values.arguments is not None else None
        if node.type in {"simple_expansion", "expansion"}:
            return self._split(node)
        one = self.one(node)
        return None if one is None else (one,)

    def one(self, node: Node) -> str | None:
        """Return the one text that a part of a word becomes, None where it can't be told or would be split."""
        match node.type:
            case "word" | "number" | "command_name" | "variable_name":
                return self._plain(node)
            case "raw_string":
                return self._raw(node)[1:-1]
            case "ansi_c_string":
                return _ansi(self._raw(node)[2:-1])
            case "string":
                return self._string(node)
            case "concatenation":
                return self._joined(node)
            case "simple_expansion" | "expansion":
                return self._value(node)
            case _:
                return None

    def _raw(self, node: Node) -> str:
        return self._text[node.start_byte : node.end_byte].decode(errors="surrogateescape")

    def _plain(self, node: Node) -> str | None:
        raw = self._raw(node)
        if _GLOB.search(raw) or _BRACES.search(raw):
            return None
        if raw.startswith("~"):
            home = self._values.get("HOME")
            if home is None or (raw != "~" and not raw.startswith("~/")):
                return None
            raw = home + raw[1:]
        return re.sub(r"\\(\n|.)", lambda found: "" if found[1] == "\n" else found[1], raw, flags=re.DOTALL)

    def _string(self, node: Node) -> str | None:
        parts: list[str] = []
        at = node.start_byte + 1
        for child in node.named_children:
            if child.type == "string_content":
                continue
            parts.append(self._quoted(at, child.start_byte))
            value = self._value(child) if child.type in {"simple_expansion", "expansion"} else None
            if value is None:
                return None
            parts.append(value)
            at = child.end_byte
        parts.append(self._quoted(at, node.end_byte - 1))
        return "".join(parts)

    def _quoted(self, start: int, stop: int) -> str:
        text = self._text[start:stop].decode(errors="surrogateescape")
        return re.sub(r'\\([$`"\\\n])', lambda found: "" if found[1] == "\n" else found[1], text)

    def _joined(self, node: Node) -> str | None:
        parts: list[str] = []
        raw = self._raw(node)
        if _BRACES.search(re.sub(r"'[^']*'|\"(\\.|[^\"])*\"", "x", raw)) or (raw.startswith("{") and "," in raw):
            return None
        for child in node.named_children:
            part = self.one(child)
            if part is None:
                return None
            if child.type in {"simple_expansion", "expansion"} and (part.split() != [part] or _GLOB.search(part)):
                return None
            parts.append(part)
        return "".join(parts)

    def _split(self, node: Node) -> tuple[str, ...] | None:
        """Return what an unquoted variable becomes: split at blanks, as long as nobody has said to split elsewhere."""
        value = self._value(node)
        if value is None or _GLOB.search(value) or self._values.get("IFS") is not None:
            return None
        return tuple(value.split())

    def _value(self, node: Node) -> str | None:
        if self._is_all(node):
            arguments = self._values.arguments
            return None if arguments is None else " ".join(arguments[1:])
        raw = self._raw(node)
        if node.type == "simple_expansion" or re.fullmatch(r"\$\{\w+\}", raw):
            return self._values.get(raw.strip("${}"))
        found = _DEFAULT.fullmatch(raw)
        if found is None:
            return None
        name, colon, _, text = found.groups()
        value = self._values.get(name)
        if value is None or self._values.is_unset(name) or (colon and not value):
            is_known = value is not None or self._values.is_unset(name)
            plain = not re.search(r"[$`\\'\"~*?\[]", text)
            return text if is_known and plain else None
        return value

    def _only(self, node: Node) -> Node | None:
        inner = node.named_children
        return inner[0] if len(inner) == 1 and inner[0].end_byte - inner[0].start_byte == self._width(node) else None

    @staticmethod
    def _width(node: Node) -> int:
        return node.end_byte - node.start_byte - 2

    def _is_all(self, node: Node) -> bool:
        return self._raw(node) in {"$@", "${@}"}


def _ansi(text: str) -> str | None:
    def letter(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "xu" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8))
        return _ANSI_LETTERS.get(code, code)

    return None if re.search(r"\\[cU]", text) else _ANSI.sub(letter, text)
