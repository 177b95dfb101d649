"""sudo in front of a command, never asking anything, and what its refusals look like."""

import re
from collections.abc import Mapping, Sequence

from specd.errors import PrivilegeRefused

__all__ = ["refusal", "with_sudo"]

_NOT_FOUND = 127
_SIGNS = (
    ("tty", re.compile(r"^sudo: .*(a terminal is required|must have a tty|no tty present)", re.MULTILINE)),
    ("password", re.compile(r"^sudo: .*(a password is required|no askpass program)", re.MULTILINE)),
    (
        "denied",
        re.compile(
            r"^(sudo: .*|Sorry, user \S+ |\S+ )(is not allowed to execute|is not in the sudoers|may not run sudo"
            r"|not allowed to (set|preserve)|is not allowed to run sudo|effective uid is not 0"
            r"|no valid sudoers sources|account validation failure|no new privileges)",
            re.MULTILINE,
        ),
    ),
)
_ADVICE = {
    "password": "allow this command with NOPASSWD in a sudoers file of the host",
    "tty": "put 'Defaults:USER !requiretty' into a sudoers file of the host",
    "denied": "allow this command with NOPASSWD in a sudoers file of the host",
}


def with_sudo(argv: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
    """Return the command line that runs `argv` as root; variables need the SETENV tag in the sudoers file."""
    return ["sudo", "-n", *(f"{name}={value}" for name, value in (env or {}).items()), "--", *argv]


def refusal(argv: Sequence[str], status: int, stderr: str, host: str) -> PrivilegeRefused | None:
    """Return the error if sudo itself refused to run `argv`, judged by its status and its words in English."""
    command = " ".join(argv[:2]) if len(argv) > 1 and not argv[1].startswith("-") else argv[0]
    if status == _NOT_FOUND and re.search(r"\bsudo: (command )?not found$", stderr.strip()):
        what = f"sudo is not installed on {host}, and {command} needs it"
        return PrivilegeRefused(what, reason="denied", host=host, next_step="install sudo, or log in as root")
    if status != 1:
        return None
    for reason, sign in _SIGNS:
        if sign.search(stderr):
            words = stderr.strip().splitlines()[-1][-200:]
            what = f"sudo does not run {command} on {host}: {words}"
            return PrivilegeRefused(what, reason=reason, host=host, next_step=_ADVICE[reason])
    return None
