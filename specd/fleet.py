"""The hosts and service managers of a config: one connection a host, one manager a host and scope."""

from pathlib import Path

from specd.errors import NotFound
from specd.hosts import open_host
from specd.hosts.host import Host
from specd.services import open_manager
from specd.services.service import ServiceManager
from specd.settings import Config, HostSettings, ServiceSettings

__all__ = ["Fleet"]


class Fleet:
    """Opens what is asked for, once; `runtime_dir` is for tunnel sockets."""

    def __init__(self, config: Config, runtime_dir: Path) -> None:
        self.config = config
        self._runtime_dir = runtime_dir
        self._hosts: dict[str, Host] = {}
        self._managers: dict[tuple[str, str], ServiceManager] = {}

    def service(self, name: str) -> ServiceSettings:
        """Return a service's settings; raises NotFound."""
        found = self.config.services.get(name)
        if found is None:
            known = ", ".join(self.config.services) or "none"
            raise NotFound(f"no service {name!r} in {self.config.path}", next_step=f"configured: {known}")
        return found

    def host_settings(self, name: str) -> HostSettings:
        """Return a host's settings; raises NotFound."""
        found = self.config.hosts.get(name)
        if found is None:
            raise NotFound(f"no host {name!r} in {self.config.path}")
        return found

    def host(self, name: str) -> Host:
        """Return the host, connecting to nothing yet."""
        if name not in self._hosts:
            self._hosts[name] = open_host(self.host_settings(name), self._runtime_dir)
        return self._hosts[name]

    def manager(self, service: ServiceSettings) -> ServiceManager:
        """Return the manager of the service's units."""
        key = (service.host, service.scope)
        if key not in self._managers:
            host = self.host(service.host)
            self._managers[key] = open_manager(host, self.host_settings(service.host), service.scope)
        return self._managers[key]

    async def close(self) -> None:
        """Close every connection; what runs on the hosts goes on."""
        for host in self._hosts.values():
            await host.close()
