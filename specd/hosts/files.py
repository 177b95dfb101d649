"""Files on a host by way of commands: read, replace atomically, remove.

Without sudo a replacement is one constant script: content to a temporary name beside the target, mode, hash compared,
fsync, rename, fsync of the directory. Whatever dies in between, the target has its old content or its new.

With sudo it is a row of single commands, so that a sudoers file can name them. For unit files in /etc/systemd/system
that begin with `specd-` the host needs (sudo 1.9.10 or newer; a `*` would match blanks and slashes, so regular
expressions are the safe form):

    USER ALL=(root) NOPASSWD: \\
      /usr/bin/tee ^/etc/systemd/system/specd-[A-Za-z0-9@_.-]+$, \\
      /usr/bin/chmod ^[0-7]{4} /etc/systemd/system/specd-[A-Za-z0-9@_.-]+$, \\
      /usr/bin/sync ^/etc/systemd/system(/specd-[A-Za-z0-9@_.-]+)?$, \\
      /usr/bin/cat ^/etc/systemd/system/specd-[A-Za-z0-9@_.-]+$, \\
      /usr/bin/mv ^-fT /etc/systemd/system/specd-[A-Za-z0-9@_.-]+ /etc/systemd/system/specd-[A-Za-z0-9@_.-]+$, \\
      /usr/bin/rm ^-f /etc/systemd/system/specd-[A-Za-z0-9@_.-]+$

in this order: `tee TEMPORARY`, `chmod MODE TEMPORARY`, `cat TEMPORARY` (only where the user may not read it), `sync
TEMPORARY`, `mv -fT TEMPORARY TARGET`, `sync DIRECTORY`; on failure `rm -f TEMPORARY`. The temporary name is that of
the target, `.tmp-` and eight hexadecimal digits: systemd takes no notice of it.
"""

import asyncio
import contextlib
import errno
import hashlib
import posixpath
import re
import secrets
from collections.abc import Sequence
from typing import Protocol

from specd.errors import FileProblem, HostError, HostUnreachable
from specd.hosts.host import Completed

__all__ = [
    "LEFTOVER_AGE_MIN",
    "file_problem",
    "os_problem",
    "read",
    "refuse_odd_path",
    "remove",
    "temporary_name",
    "write",
]

LEFTOVER_AGE_MIN = 10
"""A temporary file older than this belongs to nobody; minutes."""

CLEAN_UP_S = 10.0
"""Seconds that the removal of a temporary file may add to a failed write."""

_REASONS = (
    ("missing", "No such file", "does not exist"),
    ("missing", "Directory nonexistent", "is in a directory that does not exist"),
    ("missing", "Not a directory", "is not in a directory"),
    ("read-only", "Read-only file system", "is on a read-only file system"),
    ("no-space", "No space left on device", "can't be written: no space left"),
    ("no-space", "Disk quota exceeded", "can't be written: quota exceeded"),
    ("denied", "Permission denied", "is not accessible: permission denied"),
    ("denied", "Operation not permitted", "is not accessible: operation not permitted"),
    ("other", "Is a directory", "is a directory"),
)
_WORDS = {
    errno.ENOENT: "No such file",
    errno.ENOTDIR: "Not a directory",
    errno.EROFS: "Read-only file system",
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EACCES: "Permission denied",
    errno.EPERM: "Operation not permitted",
    errno.EISDIR: "Is a directory",
}
_TIMEOUT_S = 60.0
_SHELL = ("/bin/sh", "-c")
_READ_SCRIPT = 'exec head -c "$2" <"$1"'
_WRITE_SCRIPT = (
    "trap 'rm -f \"$1\"' EXIT; trap 'exit 1' HUP INT TERM PIPE; umask 077; set -C; cat >\"$1\" || exit; set +C; "
    'if [ -e "$2" ]; then chown --reference="$2" "$1" 2>/dev/null; fi; chmod "$3" "$1" || exit; '
    'sum=$(sha256sum <"$1") || exit; if [ "${sum%% *}" != "$4" ]; then echo "content arrived damaged" >&2; exit 1; fi; '
    'sync "$1" && mv -fT "$1" "$2" && sync "${2%/*}/" || exit; '
    'find "${2%/*}/" -maxdepth 1 -type f -name "$5" -mmin "+$6" -exec rm -f {} + 2>/dev/null; exit 0'
)
_HASH_SCRIPT = 'sha256sum <"$1"'
_LEFTOVERS_SCRIPT = 'exec find "$1" -maxdepth 1 -type f -name "$2" -mmin "+$3" 2>/dev/null'


class Runner(Protocol):
    """What is needed of a host."""

    name: str

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        privileged: bool = False,
        check: bool = True,
        limit: int = 2**20,
    ) -> Completed:
        """Run a command; one that prints more than `limit` bytes is an error."""
        ...


async def read(host: Runner, path: str, *, sudo: bool, limit: int) -> bytes:
    """Return a file's bytes; with `sudo`, by `cat` where the user may not read it."""
    script = [*_SHELL, _READ_SCRIPT, "read", path, str(limit + 1)]
    done = await host.run(script, check=False, timeout_s=_TIMEOUT_S, limit=limit + 2**16)
    if done.status != 0 and sudo and "Permission denied" in done.error_text:
        done = await host.run(["cat", path], check=False, timeout_s=_TIMEOUT_S, privileged=True, limit=limit + 2**16)
    if done.status != 0:
        raise file_problem(path, done.error_text, host.name)
    if len(done.stdout) > limit:
        raise FileProblem(f"{path} is longer than {limit} bytes", path=path, reason="other", host=host.name)
    return done.stdout


async def write(host: Runner, path: str, content: bytes, *, mode: int, sudo: bool) -> None:
    """Replace a file atomically."""
    refuse_odd_path(path, host.name)
    temporary = temporary_name(path)
    if sudo:
        await _write_with_sudo(host, path, temporary, content, mode)
        return
    digest = hashlib.sha256(content).hexdigest()
    leftovers = (_leftover_pattern(path), str(LEFTOVER_AGE_MIN))
    script = [*_SHELL, _WRITE_SCRIPT, "write", temporary, path, f"{mode:04o}", digest, *leftovers]
    done = await host.run(script, stdin=content, check=False, timeout_s=_TIMEOUT_S)
    if done.status != 0:
        raise file_problem(path, done.error_text, host.name)


async def remove(host: Runner, path: str, *, privileged: bool) -> None:
    """Remove a file; one that is not there is fine."""
    refuse_odd_path(path, host.name)
    done = await host.run(["rm", "-f", path], check=False, privileged=privileged)
    if done.status != 0:
        raise file_problem(path, done.error_text, host.name)


def temporary_name(path: str) -> str:
    """Return a name beside `path` that systemd ignores and a sudoers rule for `path` can cover."""
    return f"{path}.tmp-{secrets.token_hex(4)}"


def file_problem(path: str, words: str, host: str) -> FileProblem:
    """Return the error for what a command printed about a file in English."""
    for reason, sign, meaning in _REASONS:
        if sign in words:
            return FileProblem(f"{path} {meaning}", path=path, reason=reason, host=host)
    last = words.strip().splitlines()[-1:] or ["no reason given"]
    return FileProblem(f"{path}: {last[0][-200:]}", path=path, reason="other", host=host)


def refuse_odd_path(path: str, host: str) -> None:
    """Raise FileProblem for a path that does not name a file from the root on."""
    if not path.startswith("/") or path.endswith(("/", "/..", "/.")) or "\0" in path:
        raise FileProblem(f"{path!r} is not an absolute path of a file", path=path, reason="other", host=host)


def _leftover_pattern(path: str) -> str:
    """Return the pattern, as find takes it, of temporary names beside `path`."""
    return re.sub(r"([][*?\\])", r"\\\1", posixpath.basename(path)) + ".tmp-????????"


def os_problem(path: str, error: OSError, host: str) -> FileProblem:
    """Return the error for a failed system call."""
    problem = file_problem(path, _WORDS.get(error.errno or 0, ""), host)
    if problem.reason != "other":
        return problem
    return FileProblem(f"{path}: {error.strerror}", path=path, reason="other", host=host)


async def _write_with_sudo(host: Runner, path: str, temporary: str, content: bytes, mode: int) -> None:
    try:
        await _command(host, path, ["tee", temporary], stdin=content)
        await _command(host, path, ["chmod", f"{mode:04o}", temporary])
        await _compare(host, path, temporary, content)
        await _command(host, path, ["sync", temporary])
        await _command(host, path, ["mv", "-fT", temporary, path])
    except HostUnreachable:
        raise  # the next write finds it
    except (HostError, asyncio.CancelledError):
        with contextlib.suppress(HostError):
            await host.run(["rm", "-f", temporary], privileged=True, check=False, timeout_s=CLEAN_UP_S)
        raise
    await _command(host, path, ["sync", posixpath.dirname(path)])
    script = [*_SHELL, _LEFTOVERS_SCRIPT, "leftovers", posixpath.dirname(path), _leftover_pattern(path)]
    for leftover in (await host.run([*script, str(LEFTOVER_AGE_MIN)], check=False)).text.splitlines():
        await _command(host, leftover, ["rm", "-f", leftover])


async def _compare(host: Runner, path: str, temporary: str, content: bytes) -> None:
    done = await host.run([*_SHELL, _HASH_SCRIPT, "hash", temporary], check=False, timeout_s=_TIMEOUT_S)
    if done.status == 0:
        same = done.text.split()[:1] == [hashlib.sha256(content).hexdigest()]
    else:
        same = (await host.run(["cat", temporary], privileged=True, timeout_s=_TIMEOUT_S)).stdout == content
    if not same:
        raise FileProblem(f"{path}: content arrived damaged", path=path, reason="other", host=host.name)


async def _command(host: Runner, path: str, argv: list[str], stdin: bytes = b"") -> None:
    done = await host.run(argv, stdin=stdin, privileged=True, check=False, timeout_s=_TIMEOUT_S)
    if done.status != 0:
        raise file_problem(path, done.error_text, host.name)
