"""The commands in a shell's text, read as the shell would run them, and changed in place.

The grammar is tree-sitter's for bash. What can't be told without running the text (a substitution, the variables of a
sourced file, a loop) is never guessed.
"""

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from specd.engines.opening.expansion import Expander, Values
from specd.errors import EngineError

__all__ = ["ShellCommand", "ShellText"]

_BASH = Language(tree_sitter_bash.language())
_LOOPS = frozenset({"for_statement", "c_style_for_statement", "while_statement"})
_BRANCHES = frozenset({"if_statement", "case_statement"})
_HIDDEN = frozenset({"function_definition", "command_substitution", "process_substitution"})
_STEPS = frozenset(
    {"program", "list", "pipeline", "redirected_statement", "compound_statement", "subshell", "negated_command"}
    | {"do_group", "else_clause", "elif_clause", "case_item"}
)
# They run the words behind them in this very process.
_PREFIXES = {"exec": ("-a",), "command": (), "builtin": ()}
# A sourced file may set any variable; those of an environment's `activate` are known to be its own.
_OWN_VARIABLES = ("/bin/activate",)


@dataclass(frozen=True, slots=True)
class Token:
    """A word as written at text[start:stop], and the words that it stands for; None where that can't be told."""

    start: int
    stop: int
    words: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """One simple command: the words that its process gets, where it stands, and what is set for it.

    `inside` is what may keep it from running just once as read ("" for nothing); `path` is a directory that was put in
    front of PATH.
    """

    text: bytes
    line: int
    tokens: tuple[Token, ...]
    inside: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    path: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The words; one that can't be told stands as it is written."""
        told = ((self._raw(token),) if token.words is None else token.words for token in self.tokens)
        return tuple(itertools.chain.from_iterable(told))

    @property
    def untold(self) -> tuple[str, ...]:
        """Words, as written, of which it can't be told what or how many they are."""
        return tuple(self._raw(token) for token in self.tokens if token.words is None)

    def _raw(self, token: Token) -> str:
        return self.text[token.start : token.stop].decode(errors="replace")

    def rewritten(self, words: Sequence[str]) -> str:
        """Return the whole text with this command's words replaced by others; what stays, stays as it is written."""
        kept, added = self._difference(words)
        edits: list[tuple[int, int, str]] = []
        place = 0
        for number, token in enumerate(self.tokens):
            stop = place + (1 if token.words is None else len(token.words))
            inner = [added.get(at, []) for at in range(place + 1, stop)]
            if any(inner) or any(at not in kept for at in range(place, stop)):
                # A variable of several words, of which not all stay, is written out.
                stay = list(kept.get(place, ()))
                for at in range(place + 1, stop):
                    stay += [*added.get(at, ()), *kept.get(at, ())]
                edits.append((token.start if stay or not number else self._gap(token.start), token.stop, _quoted(stay)))
            if place < stop and (new := added.get(stop)):
                edits.append((token.stop, token.stop, " " + _quoted(new)))
            place = stop
        text = self.text
        for start, end, written in reversed(edits):
            text = text[:start] + written.encode(errors="surrogateescape") + text[end:]
        return text.decode(errors="surrogateescape")

    def _difference(self, words: Sequence[str]) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
        """Return the old words that stay, by place, and the new ones by the place that they follow."""
        old = self.words
        kept: dict[int, list[str]] = {}
        added: dict[int, list[str]] = {}
        for kind, a, b, c, d in SequenceMatcher(None, old, list(words), autojunk=False).get_opcodes():
            if kind == "equal":
                kept.update({at: [old[at]] for at in range(a, b)})
            elif d > c:
                added.setdefault(b if kind == "replace" else a, []).extend(words[c:d])
        return kept, added

    def _gap(self, start: int) -> int:
        """Return where the blanks and line continuations in front of a word begin."""
        while start:
            if self.text[start - 1 : start] in (b" ", b"\t"):
                start -= 1
            elif self.text[start - 2 : start] == b"\\\n":
                start -= 2
            else:
                break
        return start


@dataclass(slots=True)
class _Scope:
    """What is known where a command stands."""

    values: Values
    exported: dict[str, str]
    directory: str = ""
    path: str = ""
    inside: str = ""

    def copy(self, inside: str = "") -> "_Scope":
        return _Scope(self.values.copy(), dict(self.exported), self.directory, self.path, self.inside or inside)

    def assign(self, name: str, value: str | None, *, exports: bool = False) -> None:
        self.values.set(name, value)
        if value is not None and (exports or name in self.exported):
            self.exported[name] = value


class ShellText:
    """A text that a shell runs, with the variables it begins with and its arguments, $0 first.

    Raises EngineError for one that is no shell's text.
    """

    def __init__(self, text: str, variables: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        self._text = text.encode(errors="surrogateescape")
        root = Parser(_BASH).parse(self._text).root_node
        if root.has_error or b"\r" in self._text:
            raise EngineError("the shell's text can't be read with certainty")
        self._root = root
        self._scope = _Scope(Values(dict(variables), tuple(arguments)), dict(variables))

    def commands(self) -> Iterator[ShellCommand]:
        """Yield each simple command, in the order in which it stands."""
        yield from self._visit(self._root, self._scope)

    def _visit(self, node: Node, scope: _Scope) -> Iterator[ShellCommand]:
        kind = node.type
        if kind in _HIDDEN or kind in _LOOPS or kind in _BRANCHES:
            inner = scope.copy(kind.replace("_", " ").removesuffix(" statement") if kind not in _BRANCHES else "")
            for name in _assigned(node):
                if kind not in _BRANCHES:
                    inner.values.set(name, None)
                scope.values.set(name, None)
            for child in node.named_children:
                yield from self._visit(child, inner)
        elif kind in {"subshell", "pipeline"}:
            for child in node.named_children:
                yield from self._visit(child, scope.copy())
        elif kind == "redirected_statement":
            yield from self._redirected(node, scope)
        elif kind in _STEPS:
            for child in node.named_children:
                yield from self._visit(child, scope)
        elif kind == "command":
            yield self._command(node, scope, ())
            self._run(node, scope)
        else:
            self._declare(node, scope)

    def _redirected(self, node: Node, scope: _Scope) -> Iterator[ShellCommand]:
        body = node.child_by_field_name("body")
        if body is None:
            return
        # The grammar takes words behind a redirection for more of its targets.
        late = [
            word
            for each in node.children_by_field_name("redirect")
            for word in each.children_by_field_name("destination")[1:]
        ]
        if body.type == "command":
            yield self._command(body, scope, late)
            self._run(body, scope)
        elif late and body.type == "list" and (last := body.named_children[-1]).type == "command":
            for child in body.named_children[:-1]:
                yield from self._visit(child, scope)
            yield self._command(last, scope, late)
        else:
            yield from self._visit(body, scope)

    def _command(self, node: Node, scope: _Scope, late: Sequence[Node]) -> ShellCommand:
        expander = Expander(self._text, scope.values)
        name = node.child_by_field_name("name")
        words = [each for each in (name, *node.children_by_field_name("argument"), *late) if each is not None]
        tokens = [Token(each.start_byte, each.end_byte, expander.words(each)) for each in words]
        while tokens and tokens[0].words is not None and tokens[0].words[:1] and tokens[0].words[0] in _PREFIXES:
            tokens = _without_prefix(tokens, _PREFIXES[tokens[0].words[0]])
        own = {}
        for each in node.named_children:
            if each.type == "variable_assignment" and (pair := _assignment(expander, each))[1] is not None:
                own[pair[0]] = pair[1]
        return ShellCommand(
            text=self._text,
            line=node.start_point[0] + 1,
            tokens=tuple(tokens),
            inside=scope.inside,
            environment={**scope.exported, **own},
            directory=scope.directory,
            path=scope.path,
        )

    def _run(self, node: Node, scope: _Scope) -> None:
        """Take note of what a builtin changes for the commands behind it."""
        words = self._command(node, scope, ()).words
        name, rest = (words[0] if words else ""), words[1:]
        if name == "cd":
            scope.directory = rest[-1] if rest else ""
        elif name in {"source", "."} and rest:
            if not rest[0].endswith(_OWN_VARIABLES):
                scope.values.forget()
            else:
                scope.path = rest[0].removesuffix("/activate")
        elif name in {"eval", "read", "mapfile", "readarray", "getopts", "let", "printf", "shift"}:
            if name != "printf" or "-v" in rest:
                scope.values.forget()
        elif name == "set" and "--" in rest:
            scope.values.forget()

    def _declare(self, node: Node, scope: _Scope) -> None:
        expander = Expander(self._text, scope.values)
        exports = node.type == "declaration_command" and node.children[0].type == "export"
        if node.type == "variable_assignment":
            scope.assign(*_assignment(expander, node))
        elif node.type in {"variable_assignments", "declaration_command"}:
            for each in node.named_children:
                if each.type == "variable_assignment":
                    scope.assign(*_assignment(expander, each), exports=exports)
                elif each.type == "variable_name" and exports:
                    name = (each.text or b"").decode()
                    scope.assign(name, scope.values.get(name), exports=True)
        elif node.type == "unset_command":
            for each in node.named_children:
                name = (each.text or b"").decode()
                scope.values.unset(name)
                scope.exported.pop(name, None)


def _quoted(words: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _without_prefix(tokens: list[Token], valued: Sequence[str]) -> list[Token]:
    rest = tokens[1:]
    while rest and rest[0].words and rest[0].words[0].startswith("-"):
        rest = rest[2:] if rest[0].words[0] in valued else rest[1:]
    return rest


def _assignment(expander: Expander, node: Node) -> tuple[str, str | None]:
    name = node.child_by_field_name("name")
    value = node.child_by_field_name("value")
    text = "" if value is None else expander.one(value)
    is_plain = any(child.type == "=" for child in node.children)
    return (name.text or b"").decode() if name is not None else "", text if is_plain else None


def _assigned(node: Node) -> Iterator[str]:
    """Yield the names that are set anywhere in a part of the text."""
    if node.type == "variable_assignment" and (name := node.child_by_field_name("name")) is not None:
        yield (name.text or b"").decode()
    if node.type == "for_statement" and (name := node.child_by_field_name("variable")) is not None:
        yield (name.text or b"").decode()
    for child in node.named_children:
        yield from _assigned(child)
