"""Specifiers whose meaning depends on a unit's name: put in by value when text moves to a unit of another name."""

from dataclasses import dataclass

__all__ = ["UnitName", "resolve_name_specifiers"]

# Keys whose values systemd splits into words with quotes and backslash escapes; others take the text as it is.
_WORD_KEYS = frozenset({"Environment", "PassEnvironment", "UnsetEnvironment", "SetCredential", "LoadCredential"})


@dataclass(frozen=True, slots=True)
class UnitName:
    """A unit's name in its parts: `vllm@a.service` has prefix vllm and instance a."""

    name: str
    fragment_path: str = ""

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def prefix(self) -> str:
        return self.stem.partition("@")[0]

    @property
    def instance(self) -> str:
        return self.stem.partition("@")[2]

    def values(self) -> dict[str, str]:
        """Return what each specifier that depends on the name stands for."""
        last = self.prefix.rpartition("-")[2]
        path = _unescape(self.instance or self.prefix)
        return {
            "n": self.name,
            "N": self.stem,
            "p": self.prefix,
            "P": _unescape(self.prefix),
            "i": self.instance,
            "I": _unescape(self.instance),
            "j": last,
            "J": _unescape(last),
            "f": "/" + path.lstrip("/"),
            "y": self.fragment_path,
            "Y": self.fragment_path.rpartition("/")[0],
        }


def _unescape(name: str) -> str:
    """Undo unit name escaping: `-` is `/`, `\\xNN` a byte."""
    out = bytearray()
    at = 0
    raw = name.encode()
    while at < len(raw):
        if raw[at : at + 1] == b"-":
            out += b"/"
        elif raw[at : at + 2] == b"\\x" and at + 4 <= len(raw):
            out.append(int(raw[at + 2 : at + 4], 16))
            at += 3
        else:
            out += raw[at : at + 1]
        at += 1
    return out.decode(errors="replace")


def resolve_name_specifiers(key: str, value: str, unit: UnitName) -> str:
    """Replace the specifiers of a directive's value that would mean something else in a unit of another name."""
    if "%" not in value:
        return value
    known = unit.values()
    in_words = key.startswith("Exec") or key in _WORD_KEYS
    out: list[str] = []
    at = 0
    while at < len(value):
        char, after = value[at], value[at + 1 : at + 2]
        if char == "%" and after == "%":
            out.append("%%")
            at += 2
        elif char == "%" and after in known and after:
            out.append(_literal(known[after], in_words))
            at += 2
        else:
            out.append(char)
            at += 1
    return "".join(out)


def _literal(text: str, in_words: bool) -> str:
    text = text.replace("%", "%%")
    if not in_words:
        return text
    plain = "-_./:@%,+="
    return "".join(
        char if char.isalnum() or char in plain else "".join(f"\\x{byte:02x}" for byte in char.encode())
        for char in text
    )
