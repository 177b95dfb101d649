"""Seam 2: systemd, and the embedded supervisor for machines without it."""

from pathlib import Path

from specd.hosts.host import Host
from specd.services.service import ServiceManager
from specd.settings import HostSettings

__all__ = ["ServiceManager", "open_manager"]


def open_manager(host: Host, settings: HostSettings, scope: str) -> ServiceManager:
    """Return the manager of a host's units in a scope (system or user; the embedded one has a single scope)."""
    if settings.manager == "embedded":
        from specd.services.embedded import EmbeddedManager

        return EmbeddedManager(Path(settings.directory).expanduser())
    from specd.services.systemd import SystemdManager

    return SystemdManager(host, scope=scope, unit_dir=settings.unit_dir)
