"""Specifiers whose meaning depends on a unit's name: put in by value when text moves to a unit of another name."""

from dataclasses import dataclass

__all__ = ["UnitName", "resolve_name_specifiers"]

# Keys, besides Exec*, in whose values systemd undoes C's escapes.
_ESCAPED = frozenset((
    "Environment", "PassEnvironment", "UnsetEnvironment", "LogExtraFields", "StandardInputText", "RuntimeDirectory",
    "StateDirectory", "CacheDirectory", "LogsDirectory", "ConfigurationDirectory",
))  # fmt: skip
# Keys in whose values a backslash means the character after it. All others take the text as it is.
_QUOTED = frozenset((
    "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths", "BindPaths",
    "BindReadOnlyPaths", "TemporaryFileSystem", "RequiresMountsFor", "WantsMountsFor", "ExecSearchPath", "DeviceAllow",
    "MountImages", "ExtensionImages", "ExtensionDirectories",
))  # fmt: skip
# Keys in whose values a specifier is plain text.
_WITHOUT_SPECIFIERS = frozenset({"SetCredential", "SetCredentialEncrypted", "StandardInputData"})


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
    if "%" not in value or key in _WITHOUT_SPECIFIERS:
        return value
    known = unit.values()
    out: list[str] = []
    at = 0
    while at < len(value):
        char, after = value[at], value[at + 1 : at + 2]
        if char == "%" and after == "%":
            out.append("%%")
            at += 2
        elif char == "%" and after in known and after:
            out.append(_literal(known[after], key))
            at += 2
        else:
            out.append(char)
            at += 1
    return "".join(out)


def _literal(text: str, key: str) -> str:
    text = text.replace("%", "%%")
    if key in _QUOTED:
        # systemd takes what it has split off here apart a second time.
        return _quoted(_quoted(text)) if key == "TemporaryFileSystem" else _quoted(text)
    if key in _ESCAPED or key.startswith("Exec"):
        return "".join(
            char if _is_plain(char) else "".join(f"\\x{byte:02x}" for byte in char.encode()) for char in text
        )
    return text


def _quoted(text: str) -> str:
    return "".join(char if _is_plain(char) else f"\\{char}" for char in text)


def _is_plain(char: str) -> bool:
    return char.isalnum() or char in "-_./:@%,+="
