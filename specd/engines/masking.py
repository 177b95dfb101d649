"""Finding secrets in command lines and environments, and hiding them wherever text is shown."""

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["MASK", "is_secret_name", "mask", "mask_words", "secrets_in"]

MASK = "***"

# A value shorter than this would hide ordinary words all over a log.
_SHORTEST_HIDDEN = 4

_SECRET_WORDS = frozenset(
    {"key", "apikey", "token", "secret", "password", "passwd", "passphrase", "credential", "credentials", "auth", "pat"}
)
# Names that end in a secret's word and hold none.
_HARMLESS = re.compile(
    r"(num|max|min|per|speculative|batched|scheduled|spec|queued|n)[-_]tokens?$|tokens?[-_](per|count|limit|id|ids)"
    r"|tokenizer|sort[-_]key|public[-_]key|(^|[-_])primary[-_]key|keep|(^|[-_])ssl[-_]keyfile$",
    re.IGNORECASE,
)
_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_SECRET_IN_URL = re.compile(r"//[^/@\s:]+:([^/@\s]+)@")


def is_secret_name(name: str) -> bool:
    """True for a flag or variable whose name says that its value is a secret (`--api-key`, `HF_TOKEN`)."""
    bare = name.lstrip("-")
    if _HARMLESS.search(bare):
        return False
    return any(word in _SECRET_WORDS for word in re.split(r"[-_.]", bare.lower()))


def secrets_in(argv: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the secret values of a command line and an environment, longest first, each once.

    Flags are judged by name, in both spellings; all words up to the next flag count, since keys may be a list.
    """
    found: dict[str, None] = {}
    for name, value in (env or {}).items():
        if is_secret_name(name):
            found[value] = None
    in_secret_flag = False
    for word in argv:
        if word.startswith("-") and not _is_number(word):
            flag, separator, value = word.partition("=")
            in_secret_flag = is_secret_name(flag) and not separator
            if separator and is_secret_name(flag):
                found[value] = None
        elif in_secret_flag:
            found[word] = None
        elif _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            if is_secret_name(name):
                found[value] = None
        for password in _SECRET_IN_URL.findall(word):
            found[password] = None
    return tuple(sorted((value for value in found if value), key=len, reverse=True))


def mask(text: str, secrets: Iterable[str]) -> str:
    """Replace each secret in a text; values of fewer than 4 characters can't be found without hiding ordinary text."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _SHORTEST_HIDDEN:
            text = text.replace(secret, MASK)
    return text


def mask_words(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line fit to be shown: every secret value replaced, short ones too, all else as it is."""
    secrets = set(secrets_in(argv))
    shown: list[str] = []
    for word in argv:
        if word in secrets:
            shown.append(MASK)
            continue
        name, separator, value = word.partition("=")
        shown.append(
            f"{name}={MASK}" if separator and value in secrets and is_secret_name(name) else mask(word, secrets)
        )
    return tuple(shown)


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-\d+(\.\d+)?", word) is not None
