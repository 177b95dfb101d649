"""`specd import`: reads a running unit on a host and prints the config that makes it a service."""

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from specd.checking import Plan
from specd.checking.accelerator import gpu_check
from specd.checking.others import dependents_check
from specd.checking.unit import unit_checks
from specd.checks import Check
from specd.cli.import_text import config_text, record_name
from specd.cli.outside import outside_of_units
from specd.cli.show import argv_text
from specd.cli.terminal import Terminal, print_json
from specd.cli.text import clean, table
from specd.config import default_config_path, load_config
from specd.engines.container import container_checks
from specd.engines.server import Server, read_server
from specd.errors import ConfigError, EngineError, HostError, NotFound, UnitError, UsageError
from specd.hosts import open_host
from specd.hosts.host import Host
from specd.services import ServiceManager, open_manager
from specd.services.service import UnitFacts, UnitStatus
from specd.settings import HostSettings, ServiceSettings
from specd.start_times import Started, read_start

__all__ = ["import_unit"]

_HERE = frozenset({"local", "localhost", "."})
_MENTIONED = re.compile("vllm|sglang|llama", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Found:
    """A unit that runs a server we know."""

    facts: UnitFacts
    status: UnitStatus
    server: Server
    started: Started
    warnings: list[Check]


def import_unit(args: argparse.Namespace) -> int:
    """Print config for a unit, or the units that look like servers when none is named."""
    try:
        return asyncio.run(_import(args))
    except HostError as error:
        # The host named can't be asked: that is a matter of the words or the ssh config, not of a rule.
        error.exit_code = 2
        raise


async def _import(args: argparse.Namespace) -> int:
    settings = _host_settings(args)
    async with _opened(settings, args.scope) as (host, manager):
        if not args.unit:
            return await _list(args, host, manager)
        found = await _read(host, manager, args.unit, settings.name)
    text = config_text(
        settings,
        found.facts,
        found.status,
        found.server,
        found.started,
        found.warnings,
        scope=args.scope,
        name=args.name,
        is_known=_known_host(args) is not None,
    )
    if args.json:
        print_json({"host": settings.name, "unit": found.facts.name, "engine": found.server.engine.name, "toml": text})
    else:
        sys.stdout.write(text)
    return 0


@asynccontextmanager
async def _opened(settings: HostSettings, scope: str) -> AsyncIterator[tuple[Host, ServiceManager]]:
    with tempfile.TemporaryDirectory(prefix="specd-") as runtime:
        host = open_host(settings, Path(runtime))
        try:
            yield host, _manager(host, settings, scope)
        finally:
            await host.close()


def _manager(host: Host, settings: HostSettings, scope: str) -> ServiceManager:
    if settings.manager == "embedded":
        from specd.services.embedded import EmbeddedManager

        # Importing only looks: a supervisor that does not run must not be started, nor its units with it.
        return EmbeddedManager(Path(settings.directory), spawns=False)
    return open_manager(host, settings, scope)


def _known_host(args: argparse.Namespace) -> HostSettings | None:
    """Return the host of the config that has this name; a config with problems counts only when it was named."""
    try:
        return load_config(Path(args.config) if args.config else default_config_path()).hosts.get(args.host)
    except ConfigError:
        if args.config:
            raise
        return None


def _host_settings(args: argparse.Namespace) -> HostSettings:
    settings = _known_host(args)
    if settings is None:
        if args.host.startswith("-") or not args.host.strip() or " " in args.host:
            raise UsageError(f"{args.host!r} is not a host: give what you would type after ssh, or local")
        name = record_name("local" if args.host in _HERE else args.host.rpartition("@")[2].partition(":")[0])
        settings = HostSettings(name=name, ssh="" if args.host in _HERE else args.host)
    if args.become:
        settings = replace(settings, become=args.become)
    if args.embedded:
        if settings.ssh:
            raise UsageError("--embedded is for this machine: specd's own supervisor does not run elsewhere")
        settings = replace(settings, manager="embedded", directory=str(Path(args.embedded).expanduser().absolute()))
    return settings


async def _read(host: Host, manager: ServiceManager, unit: str, name: str) -> _Found:
    facts = await manager.facts(unit)
    server = await read_server(host, facts.argv, facts.environment, facts.working_directory)
    if server is None:
        raise EngineError(
            f"{facts.name} runs no server that specd knows: {argv_text(facts.argv)[:300]}",
            host=name,
            next_step="vLLM, SGLang and llama.cpp's server are known; without UNIT, import lists what is",
        )
    status = await manager.status(facts.name)
    started = (
        await read_start(manager, facts.name, status.invocation, server.engine) if status.invocation else Started()
    )
    plan = Plan(
        host=host,
        manager=manager,
        service=ServiceSettings(name="import", host="import", unit=facts.name),
        facts=facts,
        server=server,
        environment=facts.environment,
    )
    warnings = [*unit_checks(plan), *await dependents_check(plan), *await gpu_check(plan)]
    if server.line.container is not None:
        warnings += container_checks(server.line.container, facts.text)
    return _Found(facts, status, server, started, warnings)


async def _list(args: argparse.Namespace, host: Host, manager: ServiceManager) -> int:
    rows, units = [], []
    command_lines: list[Sequence[str]] = []
    for unit in await _running_units(args, host, manager):
        try:
            facts = await manager.facts(unit)
            server = await read_server(host, facts.argv, facts.environment, facts.working_directory)
        except UnitError:
            continue
        except EngineError as error:
            # A server behind a wrapper is worth a line; the many other programs behind one are not.
            if _MENTIONED.search(" ".join(facts.argv)):
                rows.append((clean(unit), "-", clean(error.what)))
            continue
        if server is not None:
            command_lines.append(facts.argv)
            engine, command = server.engine, server.command
            words = f"port {command.port}, model {clean(command.served_name or command.model)}"
            rows.append((clean(unit), engine.name, words))
            units.append({"unit": unit, "engine": engine.name, "port": command.port})
    outside = [] if manager.kind == "embedded" else await outside_of_units(host, command_lines, scope=args.scope)
    rows += [(server.where, "-", f"{server.what}: {server.words[:80]}") for server in outside]
    rows += [("", "", advice) for advice in dict.fromkeys(server.advice for server in outside)]
    if args.json:
        print_json({"host": args.host, "units": units, "outside": [asdict(server) for server in outside]})
    else:
        terminal = Terminal.of(sys.stdout)
        for line in table(rows):
            terminal.line(line)
    if not rows:
        raise NotFound(f"no running unit on {args.host} is a server that specd knows (scope {args.scope})")
    return 0


async def _running_units(args: argparse.Namespace, host: Host, manager: ServiceManager) -> list[str]:
    if manager.kind == "embedded":
        listed = await host.run(["ls", "-1", "--", f"{_host_settings(args).directory}/units"])
        return [line.removesuffix(".json") for line in listed.text.splitlines() if line.endswith(".service.json")]
    scope = ["--user"] if args.scope == "user" else []
    states = "--state=active,activating,reloading"
    command = ["systemctl", *scope, "list-units", "--type=service", states, "--plain", "--no-legend", "--no-pager"]
    listed = await host.run(command)
    return [line.split()[0] for line in listed.text.splitlines() if line.split()]
