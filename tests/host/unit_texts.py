"""Unit texts as people and generators write them: every legal form of a command line and of what feeds it."""

import random
from collections.abc import Sequence

from tests.host.unit_cases import RECORDER

# Words of an ExecStart= text in every form that systemd has for them.
_WORDS = [
    "plain", "--flag=value", "'single quoted'", '"double \\" quoted"', "mid'dle q'uote", "a'b'\"c\"d",
    "--json='{\"a\": 1}'", '"{\\"a\\": [1, 2]}"', "{\"bare\":1}", "\\x41\\n", "\\u00e9", "\\U0001f642", "\\101", "\\s",
    "\\ttab", "\\a\\b\\f\\v", "$A", "${A}", "$B", "${B}", "$C", "${C}", "$UNSET", "${UNSET}", "pre${A}post", '"$A"',
    "'${B}'", "$$", "$$A", "$${A}", "x$A", "${UNFINISHED", "${A:-b}", "${A}${B}", "$A$B", "$A-", "${}", "$", "x$",
    "%%", "%n", "%p", "%N", "%i", "100%%", "50%%off", "a%%n", "%t/x", "%H", "%h", "%u", "%U", "''", '""', "\\;", "a;b",
    "';'", "#hash", "it\\'s", "\"it's\"", "'\\d+'", "\\d", "日本", "'é\\\\'", "|", ">", "&&", "*", "~", "`date`",
    "${PATH}", "$LANG", "${HOME}", "$USER", "${RUNTIME_DIRECTORY}", "${STATE_DIRECTORY}/x", "$FOO", "${FOO}",
    "${CREDENTIALS_DIRECTORY}/key", "%d/key", "$LOGNAME", "${SHELL}", "=", "-", "--", "@x", "+y", ":z", "!w",
]  # fmt: skip
_GAPS = [" ", " ", " ", "  ", "\t", " \\\n", " \\\n    ", " \\\n# a comment\n  ", " \\\n  ; one more \\\n # two\n\t"]
# What a value in Environment= may be written as; NAME= goes in front of it.
_VALUES = [
    "one", "'one two'", '"three  four"', "a\\x20b", "'a \\'b c\\' \\\\\\\\'", "\"d \\\"e f\\\" g\"", "", "''", "%n",
    "%%", "$B", "${B}", "x=y=z", "日本", "'tab\\tline\\nend'", "'-a -b=\"c d\"'", "\\\\\\\\", "'\\\\\\\\x20 \\\\\\\\'",
    "%i-%p", "'#'", ";",
]  # fmt: skip
_FILE_PIECES = [
    "a", "b c", " ", "  ", "'", '"', "\\", "$", "`", "=", "#", ";", "\t", "\n", "\nB=", "\n# note ", "\nC='", '\nA="',
    "\\\n", "é", "\r\n", "\n;x\\\nC=1", "\nexport A=1", "\n D = x", "%n", "\nB=${A}", "'q w'", '"\\x41 \\" $B"',
    "\nA B=1",
]  # fmt: skip
_EXTRAS = [
    "User=operator", "User=nobody", "User=root", "DynamicUser=yes", "Group=operator", "PassEnvironment=FOO LANG",
    "UnsetEnvironment=A", "UnsetEnvironment=B=one C", "UnsetEnvironment=LANG PATH", "RuntimeDirectory=%p-dir other",
    "StateDirectory=%p-%i", "CacheDirectory=%p%i\nLogsDirectory=%p%i\nConfigurationDirectory=%p%i",
    "ExecSearchPath=/usr/bin:/bin", "SetCredential=key:value", "WorkingDirectory=/tmp", "PrivateTmp=no", "UMask=0",
    "Environment=", "EnvironmentFile=", "EnvironmentFile=-/etc/texts/absent", "EnvironmentFile=/etc/texts/glob-*.env",
    "Environment=FOO=own", "SetLoginEnvironment=no",
]  # fmt: skip

_PREFIXES = ["", "", "", "-", ":", "@", "-@", ":-", "@:", "+", "!", "!!", "-:+"]
# What systemd mostly refuses, ignores or cuts short.
_BROKEN = [
    "'",
    '"',
    "\\",
    "%",
    "$",
    "{",
    "}",
    ";",
    " ",
    "\t",
    "\n",
    "%Z",
    "\\x",
    "\\\n\n",
    " ; /bin/true",
    "\r\n",
    "\\ \n",
]


def command(rng: random.Random, name: str, *, is_broken: bool = False) -> str:
    """Return an ExecStart= value that records under a name what its process is given."""
    pieces = [*_WORDS, *(_BROKEN * 3 if is_broken else [])]
    gaps = [" ", "", *_GAPS] if is_broken else _GAPS
    line = "".join(rng.choice(pieces) + rng.choice(gaps) for _ in range(rng.randrange(14)))
    prefix = rng.choice(_PREFIXES)
    own = " its-own-name" if "@" in prefix else ""
    return f"{prefix}/bin/sh{own} {RECORDER} {name}{rng.choice(_GAPS)}{line}"


def environment_lines(rng: random.Random, files: Sequence[str]) -> list[str]:
    """Return lines that shape a process's environment: assignments, the files given, resets, users, directories."""
    lines = [f"EnvironmentFile={file}" for file in files]
    lines += [
        "Environment=" + " ".join(f"{rng.choice('ABC')}={rng.choice(_VALUES)}" for _ in range(rng.randrange(1, 4)))
        for _ in range(rng.randrange(4))
    ]
    lines += rng.sample(_EXTRAS, rng.randrange(5))
    rng.shuffle(lines)
    return lines


def environment_file(rng: random.Random) -> str:
    """Return an environment file's text, mostly odd."""
    return "A=" + "".join(rng.choice(_FILE_PIECES) for _ in range(rng.randrange(14)))
