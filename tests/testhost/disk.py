"""Lays out the disk of a host: directories, the upper layers over /etc and /usr, users, sshd, journald."""

import os
import secrets
import stat
import subprocess
from pathlib import Path

from tests.testhost.options import HostOptions

OPERATOR_ID = 1500
DIRECTORIES = (
    "usr",
    "etc",
    "proc",
    "sys",
    "dev",
    "run",
    "mnt",
    "media",
    "opt",
    "srv",
    "home",
    "boot",
    "root",
    "tmp",
    "var",
    "var/tmp",
    "var/lib",
    "var/log",
    "var/log/journal",
    "var/cache",
    "var/spool",
    "var/lib/systemd",
    "var/lib/systemd/linger",
)
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "var/run": "../run", "var/lock": "../run/lock"}
UNITS = Path("usr/lib/systemd/system")
WANTED_FROM = ("sysinit", "sockets", "timers", "multi-user", "basic", "local-fs", "graphical", "getty")
KEPT_UNITS = {
    "systemd-journald.service",
    "systemd-journald.socket",
    "systemd-journald-dev-log.socket",
    "systemd-journal-flush.service",
    "dbus.service",
    "dbus.socket",
    "systemd-tmpfiles-setup.service",
}
LOGIND_UNITS = {"systemd-logind.service", "systemd-user-sessions.service", "user@.service"}
NEVER_WANTED = (
    "getty@.service",
    "console-getty.service",
    "systemd-logind.service",
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "systemd-timesyncd.service",
    "systemd-remount-fs.service",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "tmp.mount",
    "user@.service",
    "ssh.socket",
)

SSHD_UNIT = """\
[Unit]
Description=OpenSSH server of the test host

[Service]
Type=notify
ExecStart=/usr/sbin/sshd -D
ExecReload=/bin/kill -HUP $MAINPID
KillMode=process
Restart=on-failure
RuntimeDirectory=sshd
RuntimeDirectoryMode=0755

[Install]
WantedBy=multi-user.target
"""
SSHD_CONFIG = """\
Include /etc/ssh/sshd_config.d/*.conf
HostKey /etc/ssh/host_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM {pam}
UseDNS no
PrintMotd no
MaxSessions {max_sessions}
MaxStartups 100:30:200
SetEnv PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
Subsystem sftp /usr/lib/openssh/sftp-server
"""
JOURNALD_CONFIG = """\
[Journal]
Storage=persistent
Audit=no
ReadKMsg=no
SystemMaxUse=64M
"""
# No questions are ever asked here, so a stack that depends on the machine's own set-up is not needed.
SUDO_PAM = "auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_permit.so\n"
SSHD_PAM = "account required pam_permit.so\nsession required pam_loginuid.so\nsession required pam_systemd.so\n"


def lay_out(disk: Path, name: str, address: str, options: HostOptions) -> None:
    """Fill an empty disk directory so that guest.sh can boot it."""
    for directory in ("usr.up", "usr.wk", "etc.up", "etc.wk", "rootfs"):
        (disk / directory).mkdir(mode=0o755)
    _root_tree(disk / "rootfs", disk / "key.pub")
    etc = _Layer(disk / "etc.up", Path("/etc"))
    _units(etc, options)
    _users(etc, options)
    _sshd(etc, disk, options)
    _identity(etc, disk / "rootfs", name, address)
    _without_bus_activation(_Layer(disk / "usr.up", Path("/usr")), options)
    (disk / "binds").write_text("".join(bind.line() for bind in options.binds))


class _Layer:
    """The upper directory of an overlay, written while it is not mounted."""

    def __init__(self, upper: Path, lower: Path) -> None:
        self.upper = upper
        self.lower = lower

    def write(self, name: str, content: str | bytes, mode: int = 0o644) -> None:
        path = self._place(name)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)

    def link(self, name: str, target: str) -> None:
        self._place(name).symlink_to(target)

    def replace_directory(self, name: str) -> None:
        """Make an empty directory that hides the lower one."""
        path = self._place(name)
        path.mkdir(mode=0o755)
        os.setxattr(path, "trusted.overlay.opaque", b"y")

    def hide(self, name: str) -> None:
        """Make a lower file vanish, if it exists: a whiteout is a character device 0/0."""
        if os.path.lexists(self.lower / name):
            os.mknod(self._place(name), stat.S_IFCHR, os.makedev(0, 0))

    def read(self, name: str) -> str:
        return (self.lower / name).read_text()

    def edit(self, name: str, content: str) -> None:
        """Write a changed copy of a lower file, with its owner and mode."""
        was = (self.lower / name).stat()
        self.write(name, content, stat.S_IMODE(was.st_mode))
        os.chown(self.upper / name, was.st_uid, was.st_gid)

    def _place(self, name: str) -> Path:
        path = self.upper / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def _root_tree(root: Path, public_key: Path) -> None:
    for directory in DIRECTORIES:
        (root / directory).mkdir(mode=0o755)
    (root / "tmp").chmod(0o1777)
    (root / "var/tmp").chmod(0o1777)
    (root / "root").chmod(0o700)
    for link, target in LINKS.items():
        (root / link).symlink_to(target)
    for wide in ("lib64", "lib32"):
        if Path("/usr", wide).exists():
            (root / wide).symlink_to(f"usr/{wide}")
    (root / "home/operator").mkdir(mode=0o750)
    os.chown(root / "home/operator", OPERATOR_ID, OPERATOR_ID)
    for home, owner in (("root", 0), ("home/operator", OPERATOR_ID)):
        ssh = root / home / ".ssh"
        ssh.mkdir(mode=0o700)
        (ssh / "authorized_keys").write_bytes(public_key.read_bytes())
        (ssh / "authorized_keys").chmod(0o600)
        for path in (ssh, ssh / "authorized_keys"):
            os.chown(path, owner, owner)


def _units(etc: _Layer, options: HostOptions) -> None:
    """Start with nothing of the machine's own units, then mask all that a host like this does not run."""
    system = "systemd/system"
    etc.replace_directory(system)
    etc.replace_directory("systemd/user")
    masked = set(NEVER_WANTED)
    for target in WANTED_FROM:
        wants = Path("/", UNITS, f"{target}.target.wants")
        masked.update(entry.name for entry in (wants.iterdir() if wants.is_dir() else ()))
    kept = KEPT_UNITS | (LOGIND_UNITS if options.user_instance else set())
    for unit in sorted(masked - kept):
        etc.link(f"{system}/{unit}", "/dev/null")
    etc.link(f"{system}/default.target", "/usr/lib/systemd/system/multi-user.target")
    etc.write(f"{system}/ssh.service", SSHD_UNIT)
    etc.link(f"{system}/multi-user.target.wants/ssh.service", "/etc/systemd/system/ssh.service")
    etc.write("systemd/journald.conf.d/testhost.conf", JOURNALD_CONFIG)


def _users(etc: _Layer, options: HostOptions) -> None:
    own = {"root", "sshd", "operator"}
    users = _entries_except(etc.read("passwd"), own)
    users.insert(0, "root:x:0:0:root:/root:/bin/bash")
    users.append("sshd:x:64999:65534::/run/sshd:/usr/sbin/nologin")
    users.append(f"operator:x:{OPERATOR_ID}:{OPERATOR_ID}::/home/operator:/bin/bash")
    etc.edit("passwd", "\n".join(users) + "\n")
    passwords = _entries_except(etc.read("shadow"), own)
    passwords += [f"{user}:*:19000:0:99999:7:::" for user in sorted(own)]
    etc.edit("shadow", "\n".join(passwords) + "\n")
    groups = _entries_except(etc.read("group"), {"operator"})
    groups = [_joined(line) if line.startswith("systemd-journal:") else line for line in groups]
    groups.append(f"operator:x:{OPERATOR_ID}:")
    etc.edit("group", "\n".join(groups) + "\n")
    etc.write("pam.d/sudo", SUDO_PAM)
    etc.write("sudoers", "Defaults env_reset\nroot ALL=(ALL:ALL) ALL\n@includedir /etc/sudoers.d\n", 0o440)
    etc.replace_directory("sudoers.d")
    if options.operator_sudoers is not None:
        etc.write("sudoers.d/operator", options.operator_sudoers.rstrip("\n") + "\n", 0o440)


def _entries_except(text: str, names: set[str]) -> list[str]:
    return [line for line in text.splitlines() if line and line.split(":", 1)[0] not in names]


def _joined(group: str) -> str:
    return f"{group},operator" if not group.endswith(":") else f"{group}operator"


def _sshd(etc: _Layer, disk: Path, options: HostOptions) -> None:
    etc.replace_directory("ssh")
    etc.replace_directory("ssh/sshd_config.d")
    etc.write("ssh/host_key", (disk / "host_key").read_bytes(), 0o600)
    pam = "yes" if options.user_instance else "no"
    etc.write("ssh/sshd_config", SSHD_CONFIG.format(pam=pam, max_sessions=options.max_sessions))
    if options.user_instance:
        etc.write("pam.d/sshd", SSHD_PAM)


def _identity(etc: _Layer, root: Path, name: str, address: str) -> None:
    machine_id = secrets.token_hex(16)
    etc.write("machine-id", machine_id + "\n", 0o444)
    (root / "var/log/journal" / machine_id).mkdir()
    etc.write("hostname", name + "\n")
    etc.write("hosts", f"127.0.0.1 localhost\n{address} {name}\n")
    for emptied in ("fstab", "resolv.conf", "environment"):
        etc.write(emptied, "")
    etc.hide("crypttab")
    etc.link("mtab", "/proc/self/mounts")


def _without_bus_activation(usr: _Layer, options: HostOptions) -> None:
    """Keep a bus call from waiting for a service that is masked."""
    services = "share/dbus-1/system-services"
    usr.hide(f"{services}/org.freedesktop.timesync1.service")
    if not options.user_instance:
        usr.hide(f"{services}/org.freedesktop.login1.service")
    else:
        (usr.upper.parent / "rootfs/var/lib/systemd/linger/operator").touch()


def make_keys(disk: Path, name: str) -> None:
    """Write the client's key pair and the host's own into the disk directory."""
    for file, comment in (("key", f"test of {name}"), ("host_key", f"root@{name}")):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(disk / file)]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
