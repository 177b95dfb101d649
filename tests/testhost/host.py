"""One throw-away host: its life, a way in, and the mishaps a test can bring on it."""

import functools
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

from tests.testhost import network, power
from tests.testhost.disk import lay_out, make_keys
from tests.testhost.errors import HostError
from tests.testhost.inside import Inside
from tests.testhost.options import HostOptions
from tests.testhost.packages import extra_usr
from tests.testhost.state import Record, guarded, noted_pid, reserve

BOOT_TIMEOUT_S = 30
STOP_TIMEOUT_S = 60

SSH_CONFIG = """\
Host {alias}
  HostName {address}
  User {user}
  IdentityFile {key}
  IdentitiesOnly yes
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  ConnectTimeout 5
  LogLevel ERROR
"""


class TestHost(Inside):
    """A host that `create` made; every method blocks, so async tests call the slow ones through asyncio.to_thread.

    The disk outlives stop, reboot and crash; mounts made by the methods below do not.
    """

    __test__ = False

    def __init__(self, disk: Path) -> None:
        self.disk = disk
        self.name = disk.name
        self._record = Record.load(disk)

    @classmethod
    def create(
        cls,
        name: str | None = None,
        options: HostOptions | None = None,
        *,
        behind: "TestHost | None" = None,
        for_person: bool = False,
    ) -> "TestHost":
        """Make a host, not booted, with a name of its own unless one is given.

        Behind another host it can be reached from there only. Raises Unavailable when this machine cannot have one.
        """
        extra_usr()
        disk, record = reserve(name, behind.name if behind else None, for_person)
        host = cls(disk)
        try:
            make_keys(disk, host.name)
            host._write_client_files(behind)
            lay_out(disk, host.name, host.address, options or HostOptions())
            network.make_namespace(host.netns)
            network.connect(record.number, host.netns, behind.netns if behind else None)
        except BaseException:
            host.destroy()
            raise
        return host

    @classmethod
    def open(cls, name: str) -> "TestHost":
        """Return a host made earlier, by its name; raises HostError when there is none."""
        with guarded() as hosts:
            if not (hosts / name / "host.json").exists():
                raise HostError(f"no host {name}")
            return cls(hosts / name)

    # Facts for a client

    @property
    def number(self) -> int:
        """Its place in the range of addresses."""
        return self._record.number

    @property
    def address(self) -> str:
        """The address to reach it at, from this machine or from the host it stands behind."""
        return network.far_address(self.number)

    @property
    def alias(self) -> str:
        """The name of root's entry in ssh_config."""
        return self.name

    @property
    def operator_alias(self) -> str:
        """The name of the entry in ssh_config of the user with few rights."""
        return f"{self.name}-operator"

    @property
    def key(self) -> Path:
        """The private key both users accept."""
        return self.disk / "key"

    @property
    def known_hosts(self) -> Path:
        """A file that trusts exactly this host, and the one in front of it."""
        return self.disk / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """A client configuration with both aliases, strict about host keys."""
        return self.disk / "ssh_config"

    @property
    def netns(self) -> Path:
        """The file its network namespace is mounted on."""
        return self.disk / "netns"

    @property
    def cgroup(self) -> Path:
        """Its cgroup as seen from this machine."""
        return power.cgroup_of(self.name)

    @property
    def pid1(self) -> int:
        """The PID, on this machine, of its systemd; raises HostError when the host is off."""
        pid = noted_pid(self.disk / "pid1")
        if pid is None:
            raise HostError(f"host {self.name} is off")
        return pid

    @property
    def is_on(self) -> bool:
        """Whether it is powered on, if only on its way up or down."""
        return noted_pid(self.disk / "supervisor") is not None

    # Life

    def boot(self) -> None:
        """Switch it on and wait for sshd."""
        if self.is_on:
            raise HostError(f"host {self.name} is on already")
        power.switch_on(self.disk, self.name, extra_usr())
        self._wait_for_sshd()

    def stop(self) -> None:
        """Shut it down cleanly and wait until it is off."""
        self._end(power.POWER_OFF)

    def crash(self) -> None:
        """Cut its power: nothing inside gets to run again."""
        self._end(signal.SIGKILL)

    def reboot(self) -> None:
        """Restart it cleanly and wait for sshd of the new boot."""
        before = self.pid1
        power.send(before, power.REBOOT)
        pid1 = self.disk / "pid1"
        power.wait_until(lambda: power.is_gone(pid1, before), STOP_TIMEOUT_S, f"shutdown of {self.name}")
        self._wait_for_sshd()

    def destroy(self) -> None:
        """Remove it with all it had on this machine; harmless when parts are gone already."""
        supervisor = self.disk / "supervisor"
        if (keeper := noted_pid(supervisor)) is not None:
            power.send(keeper, signal.SIGKILL)  # first, or it would boot the host again
            power.wait_until(lambda: power.is_gone(supervisor, keeper), 10, f"end of the keeper of {self.name}")
        if (systemd := noted_pid(self.disk / "pid1")) is not None:
            power.send(systemd, signal.SIGKILL)
        power.remove_cgroup(self.name)
        with guarded() as hosts:
            network.disconnect(self.number, self.netns, self._near)
            shutil.rmtree(self.disk)
            if not any(hosts.iterdir()):
                network.lower_guard()

    # Mishaps

    def netdown(self) -> None:
        """Take its link down: new connections are refused as unreachable, open ones hang."""
        network.set_link(self.number, self._near, "down")

    def netup(self) -> None:
        """Bring its link back."""
        network.set_link(self.number, self._near, "up")

    def drop(self) -> None:
        """Lose every packet from and to it, without a word."""
        self.exec(["nft", "-f", "-"], stdin=network.DROP_TABLE)

    def undrop(self) -> None:
        """End the loss."""
        self.exec(["nft", "delete", "table", "inet", "testhost_drop"])

    def freeze(self) -> None:
        """Stop every process of it, as a machine that hangs."""
        self._set_frozen(True)

    def thaw(self) -> None:
        """Let its processes go on."""
        self._set_frozen(False)

    def make_readonly(self, path: str) -> None:
        """Make a directory read-only, for instance the one of units, until make_writable or the next boot."""
        self.exec(["mount", "--bind", path, path])
        self.exec(["mount", "-o", "remount,bind,ro", path])

    def make_writable(self, path: str) -> None:
        """Undo make_readonly."""
        self.exec(["umount", path])

    def fill(self, path: str, size_kib: int = 256) -> None:
        """Put a small disk with the same content in place of a directory and leave no space on it."""
        script = (
            'copy=$(mktemp -d) && cp -a "$1/." "$copy" && mount -t tmpfs -o "size=$2k,mode=755" full "$1" '
            '&& cp -a "$copy/." "$1" && rm -rf "$copy"; dd if=/dev/zero of="$1/.filler" bs=4k 2>/dev/null; '
            'test "$(stat -f -c %a "$1")" = 0'
        )
        self.exec(["sh", "-c", script, "fill", path, str(size_kib)])

    def unfill(self, path: str) -> None:
        """Take the full disk away; the directory is as it was before."""
        self.exec(["umount", path])

    def squeeze(self, path: str) -> None:
        """Leave no space on a tmpfs of it, such as /run, until `widen` or the next boot."""
        script = (
            'mount -o "remount,size=$(df --block-size=1k --output=used "$1" | tail -n 1 | tr -d " ")k" "$1" '
            '&& test "$(stat -f -c %a "$1")" = 0'
        )
        self.exec(["sh", "-c", script, "squeeze", path])

    def widen(self, path: str) -> None:
        """Give a tmpfs its usual size back."""
        self.exec(["mount", "-o", "remount,size=50%", path])

    def greet_with(self, text: str, user: str = "root") -> None:
        """Make the user's shell print text at every start, non-interactive ones and SFTP's included."""
        home = "/root" if user == "root" else f"/home/{user}"
        self.put(f"{home}/.bashrc", f"printf %b {shlex.quote(text)}\n", owner=user)

    def set_sudoers(self, text: str) -> None:
        """Replace what operator may do by sudo; raises HostError when visudo finds the text wrong."""
        self.put("/etc/sudoers.d/operator", text.rstrip("\n") + "\n", mode=0o440)
        self.exec(["visudo", "--check"])

    # Inside

    @property
    def _near(self) -> Path | None:
        return self.disk.parent / self._record.behind / "netns" if self._record.behind else None

    def _write_client_files(self, behind: "TestHost | None") -> None:
        kind, key, *_ = (self.disk / "host_key.pub").read_text().split()
        trusted = f"{self.address} {kind} {key}\n"
        fill = functools.partial(SSH_CONFIG.format, address=self.address, key=self.key, known_hosts=self.known_hosts)
        jump = ""
        if behind is not None:
            trusted += behind.known_hosts.read_text()
            jump = f"  ProxyJump {behind.alias}\n"
        entries = [fill(alias=self.alias, user="root"), jump, fill(alias=self.operator_alias, user="operator"), jump]
        entries.append(behind.ssh_config.read_text() if behind else "")
        self.known_hosts.write_text(trusted)
        self.ssh_config.write_text("".join(entries))

    def _wait_for_sshd(self) -> None:
        def ready() -> bool:
            if not self.is_on:
                raise HostError(f"host {self.name} went off: {self.console_tail()}")
            if self._near is None:
                return power.answers_as_sshd(self.address)
            return noted_pid(self.disk / "pid1") is not None and self.is_active("ssh.service")

        power.wait_until(ready, BOOT_TIMEOUT_S, f"sshd of {self.name}")

    def console_tail(self) -> str:
        """Return the last lines the host printed while booting."""
        return " | ".join((self.disk / "console.log").read_text(errors="replace").splitlines()[-5:])

    def _end(self, number: int) -> None:
        supervisor = self.disk / "supervisor"
        keeper = noted_pid(supervisor)
        power.send(self.pid1, number)
        if keeper is not None:
            power.wait_until(lambda: power.is_gone(supervisor, keeper), STOP_TIMEOUT_S, f"shutdown of {self.name}")

    def _set_frozen(self, frozen: bool) -> None:
        (self.cgroup / "cgroup.freeze").write_text("1" if frozen else "0")
        wanted = f"frozen {int(frozen)}"
        events = self.cgroup / "cgroup.events"
        power.wait_until(lambda: wanted in events.read_text().splitlines(), 10, f"{self.name} to be {wanted}")


def sweep() -> list[str]:
    """Destroy the hosts whose makers are dead and return their names; those of living processes and persons stay."""
    with guarded() as hosts:
        abandoned = []
        for disk in sorted(hosts.iterdir()):
            if not (disk / "host.json").exists():
                shutil.rmtree(disk)  # its maker died while it held the lock that is ours now
            elif Record.load(disk).is_abandoned():
                abandoned.append(TestHost(disk))
    for host in abandoned:
        host.destroy()
    return [host.name for host in abandoned]


def ssh(host: TestHost, *argv: str, user: str = "root", timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    """Run a command over OpenSSH's own client, as a user would; a non-zero status is returned, not raised."""
    alias = host.alias if user == "root" else host.operator_alias
    command = ["ssh", "-F", str(host.ssh_config), alias, "--", shlex.join(argv)]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
    )
