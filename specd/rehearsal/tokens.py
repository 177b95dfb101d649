"""A toy tokenizer that can be reversed, and the text the engine writes with it.

A token is a known word (with or without a leading space, in lower case or capitalised), a punctuation mark, a line
break, or up to four bytes of anything else, packed into the id. Encoding needs no state, so ids are the same in every
process and any text survives encode and decode.
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Iterable, Sequence

from .speed import mix, uniform


def _read_words() -> dict[str, list[str]]:
    """Read `words.jsonl`: one kind of word a line."""
    text = pkgutil.get_data(__name__.rpartition(".")[0], "words.jsonl") or b""
    rows = [json.loads(line) for line in text.decode().splitlines()]
    return {row["kind"]: row["words"].split() for row in rows}


_WORDS = _read_words()
_NOUNS, _VERBS, _ADJECTIVES, _OTHERS = (_WORDS[kind] for kind in ("noun", "verb", "adjective", "other"))
_MARKS = [".", ",", ":", ";", "?", "!", "\n", "\n\n", " ", "-", "(", ")", '"', "'", "/", "=", "_", "`", "*", "#", "0"]
_MARKS += [*"123456789<>|{}[]+@&%$", "�"]

WORDS = sorted({*_NOUNS, *_VERBS, *_ADJECTIVES, *_OTHERS})
_PACKED_BASE = 1 << 20
_PACK = 4
_PIECE = re.compile(r" ?[A-Za-z]+|\n\n|\n| |[^\sA-Za-z]|\s")


def _spellings(word: str) -> list[str]:
    return [word, f" {word}", word.capitalize(), f" {word.capitalize()}"]


_TEXT_OF: list[str] = _MARKS + [spelling for word in WORDS for spelling in _spellings(word)]
_ID_OF: dict[str, int] = {text: index for index, text in reversed(list(enumerate(_TEXT_OF)))}


def encode(text: str) -> list[int]:
    """Split text into token ids."""
    ids: list[int] = []
    for piece in _PIECE.findall(text):
        known = _ID_OF.get(piece)
        if known is not None:
            ids.append(known)
            continue
        raw = piece.encode("utf-8", "surrogatepass")
        for start in range(0, len(raw), _PACK):
            part = raw[start : start + _PACK]
            ids.append(_PACKED_BASE + (len(part) << 32) + int.from_bytes(part, "big"))
    return ids


def decode(ids: Iterable[int]) -> str:
    """Join token ids back into text; an id that is none becomes a replacement character."""
    raw = b"".join(_bytes_of(token) for token in ids)
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


def _bytes_of(token: int) -> bytes:
    if 0 <= token < len(_TEXT_OF):
        return _TEXT_OF[token].encode()
    size, value = divmod(token - _PACKED_BASE, 1 << 32)
    if token < _PACKED_BASE or not 1 <= size <= _PACK or value >= 1 << (8 * size):
        return "�".encode()
    return value.to_bytes(size, "big")


def text_of(token: int) -> str:
    """Return the text of one token."""
    return decode([token])


def prompt_key(ids: Sequence[int]) -> int:
    """Hash a prompt to 64 bits."""
    return mix(len(ids), *ids)


class Story:
    """An endless English-like text that depends on its key alone, as token ids."""

    def __init__(self, key: int) -> None:
        self._key = key
        self._ids: list[int] = []
        self._sentences = 0

    def token(self, index: int) -> int:
        """Return the token at a position, counted from 0."""
        while index >= len(self._ids):
            self._write_sentence()
        return self._ids[index]

    def _write_sentence(self) -> None:
        number = self._sentences
        self._sentences += 1
        words = [
            "the",
            self._pick(_ADJECTIVES, number, 0),
            self._pick(_NOUNS, number, 1),
            self._pick(_VERBS, number, 2),
        ]
        words += [self._pick(("a", "the", "every", "no", "one"), number, 3), self._pick(_NOUNS, number, 4)]
        for clause in range(mix(self._key, number, 5) % 3):
            salt = 10 * (clause + 1)
            words += [self._pick(("because", "while", "when", "although", "until", "and"), number, salt)]
            words += [
                self._pick(("its", "their", "your", "this"), number, salt + 1),
                self._pick(_NOUNS, number, salt + 2),
            ]
            words += [self._pick(_VERBS, number, salt + 3), self._pick(("the", "some", "more"), number, salt + 4)]
            words += [self._pick(_NOUNS, number, salt + 5)]
        opening = (
            words[0].capitalize()
            if uniform(self._key, number, 6) < 0.6
            else self._pick(_OTHERS, number, 7).capitalize()
        )
        lead = "" if number == 0 or self._ids[-1] == _ID_OF["\n\n"] else " "
        self._ids.append(_ID_OF[lead + opening])
        self._ids += [_ID_OF[f" {word}"] for word in words[1:]]
        self._ids.append(_ID_OF["."])
        if mix(self._key, number, 8) % 5 == 4:
            self._ids.append(_ID_OF["\n\n"])

    def _pick(self, words: Sequence[str], number: int, salt: int) -> str:
        return words[mix(self._key, number, 100 + salt) % len(words)]


class Babble(Story):
    """The text of a broken model: one word for ever, or replacement characters."""

    def __init__(self, key: int, kind: str) -> None:
        super().__init__(key)
        words = {"replacement": ["�"], "loop": [f" {_NOUNS[key % len(_NOUNS)]}"]}
        self._loop = [_ID_OF[word] for word in words.get(kind, [f" {_NOUNS[key % len(_NOUNS)]}", "�", "�"])]

    def token(self, index: int) -> int:
        """Return the token at a position, counted from 0."""
        return self._loop[index % len(self._loop)]
