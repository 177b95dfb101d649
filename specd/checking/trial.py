"""What the checks of a planned restart are about."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specd.engines.engine import ServerCommand
from specd.engines.server import Server
from specd.hosts.host import Host
from specd.services.service import ServiceManager, UnitFacts
from specd.settings import ServiceSettings

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A restart that is meant: where, of which service, from which unit to which command line.

    `server` is the candidate's, `environment` what its unit sets. `expected_s` says how long each state may be
    expected to take, by its name; {} while nothing is known.
    """

    host: Host
    manager: ServiceManager
    service: ServiceSettings
    facts: UnitFacts
    server: Server
    environment: Mapping[str, str] = field(default_factory=dict)
    expected_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def command(self) -> ServerCommand:
        """The candidate's command line."""
        return self.server.command

    def flag(self, name: str, default: float) -> float:
        """Return a number flag's value; its default where it is not given or no number."""
        try:
            return float(self.command.flags.get(name, default))
        except (TypeError, ValueError):
            return default
