"""Seam 1, hosts: this machine, or one over SSH."""

from pathlib import Path

from specd.hosts.host import Completed, Host, Link, Route
from specd.settings import HostSettings

__all__ = ["Completed", "Host", "Link", "Route", "open_host"]


def open_host(settings: HostSettings, runtime_dir: Path) -> Host:
    """Return the host of the settings, connecting to nothing yet; `runtime_dir` is for the sockets of tunnels."""
    # Imported here: SSH costs a tenth of a second, which `specd --help` does not have.
    if settings.ssh:
        from specd.hosts.ssh import SshHost

        return SshHost(settings, runtime_dir)
    from specd.hosts.local import LocalHost

    return LocalHost(settings)
