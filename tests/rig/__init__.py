"""Whole installations for scenario tests: a service that runs the rehearsal engine, and the real daemon beside it."""

from tests.rig.daemon import Daemon
from tests.rig.embedded import EmbeddedSite
from tests.rig.points import KilledDaemon
from tests.rig.remote import RemoteSite
from tests.rig.site import SCRIPT, Site
from tests.rig.small_disk import SmallDisk

__all__ = ["SCRIPT", "Daemon", "EmbeddedSite", "KilledDaemon", "RemoteSite", "Site", "SmallDisk"]
