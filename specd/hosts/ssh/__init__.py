"""A host over SSH; this package is the only importer of asyncssh."""

from specd.hosts.ssh.host import SshHost

__all__ = ["SshHost"]
