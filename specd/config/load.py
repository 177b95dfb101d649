"""Reads a config file: every record, then what holds between them."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from specd.config.document import Document, nearest, parse
from specd.config.record import read_record
from specd.config.scan import KeyPath
from specd.errors import ConfigError, Problem
from specd.settings import BenchSettings, Config, DaemonSettings, ServiceSettings

__all__ = ["load_config", "missing", "parse_config", "peek_daemon", "read_text"]


def load_config(path: Path) -> Config:
    """Read and check a config file; raises ConfigError with every problem in it."""
    return parse_config(read_text(path), str(path), base=path.absolute().parent)


def peek_daemon(path: Path) -> DaemonSettings:
    """Return [daemon] of a file that may have problems elsewhere; the defaults where there is no use in it."""
    try:
        document = parse(read_text(path), str(path))
    except ConfigError:
        return DaemonSettings()
    table = document.table.get("daemon", {})
    settings = read_record(DaemonSettings, table, ("daemon",), document, path.absolute().parent, {})
    return settings if document.is_sound(()) else DaemonSettings()


def read_text(path: Path) -> str:
    """Return a UTF-8 file's text; raises ConfigError that says why it can't be read."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError([Problem(str(path), line, "", "not UTF-8 text")]) from None
    except FileNotFoundError:
        raise ConfigError([Problem(str(path), 0, "", "no such file")]) from None
    except OSError as error:
        words = (error.strerror or "can't be read").lower()
        raise ConfigError([Problem(str(path), 0, "", words)]) from None


def parse_config(text: str, file: str, *, base: Path | None = None) -> Config:
    """Check a config file's text; relative paths start at `base`."""
    document = parse(text, file)
    config = read_record(Config, document.table, (), document, base or Path.cwd(), {"path": file})
    # The plan that services name when they name none; a file may define its own.
    plans = {"default": BenchSettings(name="default"), **config.benchmarks}
    config = replace(config, benchmarks=plans)
    _cross_check(config, document)
    document.finish()
    return config


def _cross_check(config: Config, document: Document) -> None:
    if config.daemon.tcp and not config.daemon.token_file and document.is_sound(("daemon",)):
        document.complain(("daemon", "tcp"), "needs token_file beside it: over TCP the API wants a token")
    for name, host in config.hosts.items():
        path: KeyPath = ("hosts", name)
        if not document.is_sound((*path, "manager"), (*path, "directory")):
            continue
        if host.manager == "embedded" and not host.directory:
            document.complain((*path, "directory"), 'is missing: manager = "embedded" needs a place for its units')
        if host.manager == "embedded" and host.ssh:
            document.complain(
                (*path, "ssh"), 'does not go with manager = "embedded": that one is for this machine only'
            )
        if host.manager != "embedded" and host.directory:
            document.complain((*path, "directory"), 'is for manager = "embedded" only; did you mean unit_dir?')
    units: dict[tuple[str, str, str], str] = {}
    for name, service in config.services.items():
        path = ("services", name)
        _check_service(path, service, config, document)
        place = (service.host, service.scope, service.unit)
        if place in units and document.is_sound((*path, "unit"), (*path, "host"), (*path, "scope")):
            document.complain((*path, "unit"), f"{service.unit} on {service.host} is already service {units[place]}")
        units.setdefault(place, name)


def _check_service(path: KeyPath, service: ServiceSettings, config: Config, document: Document) -> None:
    host, plan = config.hosts.get(service.host), config.benchmarks.get(service.benchmark)
    if host is None and document.is_sound((*path, "host")):
        document.complain((*path, "host"), missing("host", service.host, config.hosts))
    if host is not None and host.become != "none" and service.scope == "user" and document.is_sound((*path, "scope")):
        document.complain((*path, "scope"), f'"user" does not go with become = "{host.become}" of host {host.name}')
    if plan is None and document.is_sound((*path, "benchmark")):
        document.complain((*path, "benchmark"), missing("benchmark plan", service.benchmark, config.benchmarks))
    level = service.policy.level
    if plan is not None and level and level not in plan.levels and document.is_sound(("benchmarks", plan.name)):
        levels = ", ".join(str(known) for known in plan.levels)
        document.complain(
            (*path, "policy", "level"), f"is not a level of benchmark plan {plan.name}, which has {levels}"
        )
    if service.api_key_file and service.api_key_env:
        document.complain((*path, "api_key_env"), "and api_key_file exclude each other")
    guard = service.guard
    if guard.renew_s * 2 > guard.lease_s and document.is_sound((*path, "guard")):
        written = "renew_s" if (*path, "guard", "renew_s") in document.scan.lines else "lease_s"
        text = (
            f"renew_s ({guard.renew_s:g}) is more than half of lease_s ({guard.lease_s:g}): one lost renewal would fire"
        )
        document.complain((*path, "guard", written), text)


def missing(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the words for a name that nothing in the config answers to."""
    names = list(known)
    close = nearest(name, names)
    if close:
        return f"no {kind} is called {name[:70]}; did you mean {close}?"
    rest = f"the config has {', '.join(names)}" if names else "the config has none"
    return f"no {kind} is called {name[:70]}; {rest}"
