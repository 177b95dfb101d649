"""Throw-away hosts: a real systemd as PID 1, journald and sshd, in namespaces of this machine; root is needed."""

from tests.testhost.errors import HostError, Unavailable
from tests.testhost.host import TestHost, sweep
from tests.testhost.options import Bind, HostOptions, project_binds

__all__ = ["Bind", "HostError", "HostOptions", "TestHost", "Unavailable", "project_binds", "sweep"]
