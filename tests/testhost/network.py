"""The network of test hosts: one veth pair a host, and nothing that could lead off this machine.

Addresses are 10.213.N.129 for this side and 10.213.N.130 for the host. A host has no default route, and an
unreachable route for the whole range stands in for a link that is down, so no packet for a test host can follow
this machine's own default route.
"""

import json
import os
import subprocess
from pathlib import Path

from tests.testhost.errors import HostError

RANGE = "10.213.0.0/16"
GUARD_METRIC = "4294900213"
NUMBERS = range(1, 255)


def near_address(number: int) -> str:
    """Return the address of this machine's end."""
    return f"10.213.{number}.129"


def far_address(number: int) -> str:
    """Return the address of the host."""
    return f"10.213.{number}.130"


def link_name(number: int) -> str:
    """Return the name of the near interface."""
    return f"specd{number}"


def run(*argv: str, netns: Path | None = None, stdin: str | None = None) -> str:
    """Run a network command, in a host's namespace if one is given; raises HostError with its words."""
    prefix = ["nsenter", f"--net={netns}"] if netns else []
    done = subprocess.run([*prefix, *argv], input=stdin, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise HostError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def raise_guard() -> None:
    """Put the unreachable route in place; no effect when it stands."""
    run("ip", "route", "replace", "unreachable", RANGE, "metric", GUARD_METRIC)


def lower_guard() -> None:
    """Take the unreachable route away, if it stands; for when the last host is gone."""
    if any(route.get("metric") == int(GUARD_METRIC) for route in json.loads(run("ip", "-j", "route", "show", RANGE))):
        run("ip", "route", "del", "unreachable", RANGE, "metric", GUARD_METRIC)


def make_namespace(netns: Path) -> None:
    """Make a network namespace that lives as long as the file it is mounted on."""
    netns.touch()
    run("unshare", f"--net={netns}", "true")
    run("ip", "link", "set", "lo", "up", netns=netns)


def connect(number: int, netns: Path, near: Path | None) -> None:
    """Join a namespace by a new link to this machine, or to the namespace `near`; raises HostError if taken."""
    raise_guard()
    name = link_name(number)
    run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(netns), netns=near)
    run("ip", "addr", "add", f"{near_address(number)}/30", "dev", name, netns=near)
    run("ip", "link", "set", name, "up", netns=near)
    run("ip", "addr", "add", f"{far_address(number)}/30", "dev", "eth0", netns=netns)
    run("ip", "link", "set", "eth0", "up", netns=netns)


def disconnect(number: int, netns: Path, near: Path | None) -> None:
    """Remove a host's link and namespace, whatever is left of them."""
    prefix = ["nsenter", f"--net={near}"] if near and near.exists() else []
    subprocess.run([*prefix, "ip", "link", "del", link_name(number)], capture_output=True, timeout=30, check=False)
    while os.path.ismount(netns):
        subprocess.run(["umount", str(netns)], check=True, capture_output=True, timeout=30)


def set_link(number: int, near: Path | None, state: str) -> None:
    """Set the near end "up" or "down"; while it is down a new connection fails at once as unreachable."""
    raise_guard()
    run("ip", "link", "set", link_name(number), state, netns=near)


DROP_TABLE = """\
table inet testhost_drop {
  chain incoming { type filter hook input priority 0; iif "eth0" drop; }
  chain outgoing { type filter hook output priority 0; oif "eth0" drop; }
}
"""
