"""The service manager that speaks to systemd."""

from specd.services.systemd.manager import SystemdManager

__all__ = ["SystemdManager"]
