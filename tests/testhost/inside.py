"""What can be done inside a host past its network: commands, files, units; through namespaces, not through ssh."""

import hashlib
import shlex
import stat
import subprocess
from pathlib import PurePosixPath

from tests.testhost.errors import HostError

CLEAN_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
WRITE_SCRIPT = (
    'make() { [ -z "$1" ] || [ -d "$1" ] || { make "${1%/*}" "$2" && mkdir -m 755 "$1" && chown "$2:" "$1"; }; }; '
    'make "${1%/*}" "$3" && umask 077 && fresh="$1.put$$" && cat >"$fresh" '
    '&& chown "$3:" "$fresh" && chmod "$2" "$fresh" && mv -f "$fresh" "$1"'
)
LIST_SCRIPT = 'cd "$1" && find . -mindepth 1 -printf "%m %y %P\\0%l\\0"'


class Inside:
    """The commands of a host that need nothing but the PID of its systemd."""

    @property
    def pid1(self) -> int:
        """The PID of its systemd on this machine."""
        raise NotImplementedError

    def exec(
        self,
        argv: list[str],
        *,
        stdin: str | bytes | None = None,
        check: bool = True,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root inside and return what it printed; raises HostError on a non-zero status if asked.

        The process stays in this machine's cgroup, so freeze does not stop it.
        """
        given = stdin.encode() if isinstance(stdin, str) else stdin
        done = self._run(argv, given, timeout_s)
        text = subprocess.CompletedProcess(
            argv, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        if check and done.returncode != 0:
            raise HostError(
                f"{shlex.join(argv)}: status {done.returncode}: {text.stderr.strip() or text.stdout.strip()}"
            )
        return text

    def put(self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root") -> None:
        """Write a file by rename, making the owner's directories above it as needed."""
        self.exec(["sh", "-c", WRITE_SCRIPT, "put", path, f"{mode:o}", owner], stdin=content)

    def get(self, path: str) -> bytes:
        """Return a file's content; raises HostError when it cannot be read."""
        done = self._run(["cat", "--", path], None, 60)
        if done.returncode != 0:
            raise HostError(done.stderr.decode(errors="replace").strip())
        return done.stdout

    def exists(self, path: str) -> bool:
        """Whether a path exists, a dangling link included."""
        return self.exec(["sh", "-c", '[ -e "$1" ] || [ -L "$1" ]', "exists", path], check=False).returncode == 0

    def snapshot(self, directory: str) -> dict[str, str]:
        """Return each path below a directory with its mode, kind and content's digest or link target."""
        listed = self._run(["sh", "-c", LIST_SCRIPT, "list", directory], None, 60)
        if listed.returncode != 0:
            raise HostError(listed.stderr.decode(errors="replace").strip())
        fields = listed.stdout.decode(errors="surrogateescape").split("\0")
        found: dict[str, str] = {}
        for head, target in zip(fields[0::2], fields[1::2], strict=False):
            mode, kind, path = head.split(" ", 2)
            if kind == "f":
                target = hashlib.sha256(self.get(str(PurePosixPath(directory, path)))).hexdigest()
            found[path] = f"{stat.S_IMODE(int(mode, 8)):o} {kind} {target}"
        return found

    # systemd

    def systemctl(self, *arguments: str, check: bool = True, timeout_s: float = 120) -> str:
        """Run systemctl and return what it printed, without the last newline."""
        return self.exec(["systemctl", *arguments], check=check, timeout_s=timeout_s).stdout.rstrip("\n")

    def is_active(self, unit: str) -> bool:
        """Whether a unit is active; false while it is on its way."""
        return self.exec(["systemctl", "is-active", "-q", unit], check=False).returncode == 0

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Return properties of a unit as systemctl show prints them."""
        text = self.systemctl("show", unit, *(f"--property={name}" for name in properties))
        return dict(line.split("=", 1) for line in text.splitlines())

    def write_unit(self, name: str, text: str) -> None:
        """Put a unit file, or a drop-in such as a.service.d/b.conf, into /etc/systemd/system and reload."""
        self.put(f"/etc/systemd/system/{name}", text)
        self.systemctl("daemon-reload")

    def journal(self, unit: str) -> list[str]:
        """Return the messages of a unit, all boots, oldest first."""
        done = self.exec(["journalctl", "--no-pager", "-q", "-o", "cat", "--all", "-u", unit])
        return done.stdout.splitlines()

    def _run(self, argv: list[str], stdin: bytes | None, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
        enter = ["nsenter", f"--target={self.pid1}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"]
        given = subprocess.DEVNULL if stdin is None else None
        return subprocess.run(
            [*enter, *argv],
            stdin=given,
            input=stdin,
            capture_output=True,
            env=CLEAN_ENVIRONMENT,
            timeout=timeout_s,
            check=False,
        )
