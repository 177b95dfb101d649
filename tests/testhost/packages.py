"""Gets the programs a host needs and this machine lacks, unpacked beside the system, never installed."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.testhost.cache import cache_dir, locked
from tests.testhost.errors import Unavailable

NEEDED = {"/usr/sbin/sshd": "openssh-server", "/usr/sbin/nft": "nftables", "/usr/bin/sudo": "sudo"}
PRESENT_ON_MACHINE = ("unshare", "nsenter", "setsid", "ip", "mount", "pivot_root", "dbus-daemon")
SYSTEMD = Path("/usr/lib/systemd/systemd")
APT_TIMEOUT_S = 180
_INSTALL_LINE = re.compile(r"^Inst (\S+)", re.MULTILINE)


def extra_usr() -> Path:
    """Return a directory to lay over /usr, empty when the machine has all; raises Unavailable with the reason."""
    _check_machine()
    missing = sorted(package for program, package in NEEDED.items() if not Path(program).exists())
    root = cache_dir() / "host-packages" / ("-".join(missing) or "none")
    usr = root / "usr"
    if usr.exists():
        return usr
    with locked(root.with_suffix(".lock")):
        if not usr.exists():
            _unpack(missing, root)
    return usr


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise Unavailable("a test host needs root")
    if not SYSTEMD.exists():
        raise Unavailable("a test host needs systemd, which is not installed here")
    absent = [program for program in PRESENT_ON_MACHINE if shutil.which(program) is None]
    if absent:
        raise Unavailable(f"a test host needs {', '.join(absent)}, not installed here")
    if subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], check=False).returncode != 0:
        raise Unavailable("a test host needs new namespaces, which this machine does not allow")
    if "cgroup2" not in {line.split()[2] for line in Path("/proc/mounts").read_text().splitlines()}:
        raise Unavailable("a test host needs a cgroup2 mount")


def _unpack(packages: list[str], root: Path) -> None:
    """Unpack the packages and what they depend on into root/usr, which appears whole or not at all."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        tree, downloads = Path(scratch) / "tree", Path(scratch) / "debs"
        (tree / "usr").mkdir(parents=True)
        downloads.mkdir()
        if packages:
            _apt(["download", *_with_dependencies(packages)], downloads)
        for package in sorted(downloads.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(tree)], check=True, timeout=APT_TIMEOUT_S)
        for top in ("bin", "sbin", "lib", "lib64"):
            # Older packages still use the top-level names, which are links into /usr on the machine itself.
            if (tree / top).is_dir():
                shutil.copytree(tree / top, tree / "usr" / top, symlinks=True, dirs_exist_ok=True)
        root.mkdir(exist_ok=True)
        (tree / "usr").chmod(0o755)
        (tree / "usr").rename(root / "usr")


def _with_dependencies(packages: list[str]) -> list[str]:
    """Return the packages apt would install, after one refresh of its lists if it does not know them."""
    simulate = ["--simulate", "--yes", "--no-install-recommends", "install", *packages]
    try:
        plan = _apt(simulate, Path("/"))
    except Unavailable:
        _apt(["update"], Path("/"))
        plan = _apt(simulate, Path("/"))
    return _INSTALL_LINE.findall(plan)


def _apt(arguments: list[str], directory: Path) -> str:
    # apt's own download user cannot write into a directory of root's.
    command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", *arguments]
    if shutil.which("apt-get") is None:
        raise Unavailable(f"a test host needs {', '.join(NEEDED.values())}, and there is no apt-get to fetch them")
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=APT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"apt-get {arguments[0]}: not done after {APT_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Unavailable(f"apt-get {arguments[0]}: {lines[-1]}")
    return done.stdout
