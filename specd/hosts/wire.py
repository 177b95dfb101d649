"""What a remote login shell is given, and how its answer is read: the one place that quotes.

The command line is `exec /bin/sh -c '<constant script>' specd <arguments>`. No word of it holds a quote, a backslash
outside of octal escapes, an exclamation mark or a newline, so bash, dash, zsh, fish and csh all hand it on unchanged.
The script puts a marker with a random token before and after what the command prints, on both streams, and the exit
status into the last one: banners of start-up files before it and noise after it never count, and a status without
its marker does not exist.

Where the command reads no input the script watches its own instead, which ends when the channel does, and then ends
the command: nothing is left behind by a lost link, a deadline or the daemon's death. Only what sudo started can't be
ended that way; it ends when it writes to the closed stream.
"""

import re
import secrets
from collections.abc import Mapping, Sequence

from specd.errors import HostError

__all__ = [
    "MAX_COMMAND_BYTES",
    "SEARCH_PATH",
    "Frame",
    "Lines",
    "command_line",
    "end_command",
    "environment_line",
    "new_token",
]

MAX_COMMAND_BYTES = 120_000
"""A login shell gets its command as one argument, and Linux takes no argument of 128 KiB or more."""

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin"
"""Appended to the PATH of a session that is not a login."""

_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b"'\\!")
_NOISE_KEPT = 4096

# Each argument comes as `=` and itself, or as `~` and its octal escapes.
_DECODE = (
    'for s_a do shift; case $s_a in =*) set -- "$@" "${s_a#=}";; '
    '*) s_b=$(printf %b_ "${s_a#?}"); set -- "$@" "${s_b%_}";; esac; done; '
)
# Variables for the command come as the first line of input, where `ps` does not show them.
_ENVIRONMENT = (
    "case $s_m in *env) set -f; read -r s_e <&3; for s_a in $s_e; do "
    's_b=$(printf %b_ "$s_a"); export "${s_b%_}"; done; set +f;; esac; '
)
# The last number of a job is asked for without writing the mark: csh would look into its history for it.
_START = (
    'case $s_m in feed*) "$@" <&3 3<&- & ;; *) "$@" </dev/null 3<&- & ;; esac; '
    's_x=$(printf "\\041"); eval "s_c=$"$s_x; '
)
# A server gives each command a process group; where ours is its leader, what the command started is ended with it.
_END_GROUP = (
    "s_end() { trap : TERM; read -r s_a s_b s_b s_b s_g s_b </proc/$$/stat; "
    'if [ "$s_g" = $$ ]; then s_c=-$$; fi; kill -TERM $s_c; sleep 2; kill -KILL $s_c; }; '
)
# The trap comes last: a subshell that still had it could lose the signal that ends it.
_WATCH = (
    "s_w=; case $s_m in watch*) "
    '{ while read -r s_a; do :; done; s_end; } <&3 >/dev/null 2>&1 & eval "s_w=$"$s_x;; '
    'esac; trap "kill -TERM $s_c" TERM; '
)
_RUN = (
    "LC_ALL=C; "
    + _DECODE
    + f"LC_ALL=C.UTF-8; PATH=$PATH:{SEARCH_PATH}; export LC_ALL PATH; s_t=$1 s_m=$2; shift 2; exec 3<&0; "
    + _ENVIRONMENT
    + 'echo "specd-begin-$s_t $$"; echo "specd-begin-$s_t $$" >&2; '
    + _END_GROUP
    + _START
    + _WATCH
    + 'wait $s_c; s_s=$?; if [ -n "$s_w" ]; then { kill $s_w; wait $s_w; } 2>/dev/null; fi; '
    # Nobody takes the answer any more: the command may have died of that, and left children.
    + 'trap "" PIPE; { echo "specd-end-$s_t $s_s" && echo "specd-end-$s_t $s_s" >&2; } || s_end'
)
# The token in the arguments of the process proves that the number was not given to another one meanwhile.
_END = (
    'case $(tr -c "[:print:]" " " </proc/$2/cmdline) in *"$1"*) ;; *) exit 0;; esac; '
    'read -r a b b b group b </proc/$2/stat; who=$2; if [ "$group" = "$2" ]; then who=-$2; fi; kill -TERM $who; '
    "for again in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; kill -0 $who || exit 0; done; kill -KILL $who"
)
_STATUS = re.compile(rb"(\d{1,3})\r?\n")


def new_token() -> str:
    """Return the token of one command."""
    return secrets.token_hex(8)


def command_line(argv: Sequence[str], token: str, *, feeds_input: bool, env: Mapping[str, str] | None = None) -> str:
    """Return what to give a remote shell; raises HostError when an argument can't be passed.

    With `env`, the first line of input has to be `environment_line(env)`.
    """
    mode = ("feed" if feeds_input else "watch") + ("-env" if env else "")
    words = " ".join(_encoded(word) for word in (token, mode, *argv))
    line = f"exec /bin/sh -c '{_RUN}' specd {words}"
    if len(line) > MAX_COMMAND_BYTES:
        raise HostError(f"the arguments of {argv[0]} are too long to be passed ({len(line)} bytes)")
    return line


def environment_line(env: Mapping[str, str]) -> bytes:
    """Return the first line of input for a command line made with `env`."""
    return b" ".join(_octal(f"{name}={value}".encode(errors="surrogateescape")) for name, value in env.items()) + b"\n"


def end_command(pid: int, token: str) -> list[str]:
    """Return the command that ends another one, by the number its frame began with."""
    return ["/bin/sh", "-c", _END, "specd-end", token, str(pid)]


def _encoded(word: str) -> str:
    content = word.encode(errors="surrogateescape")
    if 0 in content:
        raise HostError("an argument holds a NUL byte, which no command can be given")
    if _PLAIN.issuperset(content):
        return f"'={word}'"
    return "'~" + "".join(chr(byte) if byte in _PLAIN else f"\\0{byte:03o}" for byte in content) + "'"


def _octal(content: bytes) -> bytes:
    if 0 in content:
        raise HostError("a variable holds a NUL byte, which no command can be given")
    return b"".join(b"\\0%03o" % byte if byte not in _PLAIN or byte == 0x20 else bytes((byte,)) for byte in content)


class Frame:
    """One stream of a framed answer; `pid` is the script's, `status` the command's once the stream is complete."""

    def __init__(self, token: str) -> None:
        self._begin = f"specd-begin-{token} ".encode()
        self._end = f"specd-end-{token} ".encode()
        self._held = bytearray()
        self.pid: int | None = None
        self.status: int | None = None

    @property
    def noise(self) -> str:
        """What came before the command started, if it never did; its end only."""
        return "" if self.pid is not None else self._held.decode(errors="replace")

    def feed(self, received: bytes) -> bytes:
        """Take what was received and return what the command printed, which may lag by the length of a marker."""
        if self.status is not None:
            return b""
        self._held += received
        if self.pid is None and not self._started():
            return b""
        at = self._held.find(self._end)
        if at < 0:
            return self._take(len(self._held) - self._marker_prefix())
        printed = self._take(at)
        if found := _STATUS.match(self._held, len(self._end)):
            self.status = int(found[1])
        return printed

    def _started(self) -> bool:
        at = self._held.find(self._begin)
        line_end = self._held.find(b"\n", at) if at >= 0 else -1
        if line_end < 0:
            if at < 0:
                del self._held[:-_NOISE_KEPT]
            return False
        self.pid = int(self._held[at + len(self._begin) : line_end])
        del self._held[: line_end + 1]
        return True

    def _marker_prefix(self) -> int:
        """Return how many of the last bytes could be the start of the end marker."""
        longest = min(len(self._held), len(self._end) - 1)
        tail = bytes(self._held[len(self._held) - longest :])
        return next((size for size in range(longest, 0, -1) if self._end.startswith(tail[longest - size :])), 0)

    def _take(self, length: int) -> bytes:
        taken = bytes(self._held[:length])
        del self._held[:length]
        return taken


class Lines:
    """Cuts a stream into lines of any length, without their newline."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """Return the lines that are complete now."""
        *complete, rest = received.split(b"\n")
        if complete:
            complete[0] = b"".join([*self._parts, complete[0]])
            self._parts = []
        if rest:
            self._parts.append(rest)
        return complete

    def end(self) -> list[bytes]:
        """Return what came after the last newline, if anything did."""
        rest, self._parts = b"".join(self._parts), []
        return [rest] if rest else []
