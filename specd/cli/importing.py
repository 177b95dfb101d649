"""`specd import`: reads a running unit on a host and prints the config that makes it a service."""

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from specd.cli.show import argv_text
from specd.cli.terminal import Terminal, print_json
from specd.cli.text import clean, table
from specd.config import default_config_path, load_config, parse_config
from specd.engines.server import Server, read_server
from specd.errors import ConfigError, EngineError, HostError, NotFound, Refused, UnitError, UsageError
from specd.hosts import open_host
from specd.hosts.host import Host
from specd.services import ServiceManager, open_manager
from specd.services.service import UnitFacts, UnitStatus
from specd.settings import HostSettings

__all__ = ["import_unit"]

_HERE = frozenset({"local", "localhost", "."})
_MENTIONED = re.compile("vllm|sglang|llama", re.IGNORECASE)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class _Found:
    """A unit that runs a server we know."""

    facts: UnitFacts
    status: UnitStatus
    server: Server


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
    text = config_text(settings, found, scope=args.scope, name=args.name, is_known=_known_host(args) is not None)
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
        name = _record_name("local" if args.host in _HERE else args.host.rpartition("@")[2].partition(":")[0])
        settings = HostSettings(name=name, ssh="" if args.host in _HERE else args.host)
    if args.become:
        settings = replace(settings, become=args.become)
    if args.embedded:
        if settings.ssh:
            raise UsageError("--embedded is for this machine: specd's own supervisor does not run elsewhere")
        settings = replace(settings, manager="embedded", directory=str(Path(args.embedded).expanduser().absolute()))
    return settings


def _record_name(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-._")[:63] or "host"


async def _read(host: Host, manager: ServiceManager, unit: str, name: str) -> _Found:
    facts = await manager.facts(unit)
    server = await read_server(host, facts.argv, facts.environment, facts.working_directory)
    if server is None:
        raise EngineError(
            f"{facts.name} runs no server that specd knows: {argv_text(facts.argv)[:300]}",
            host=name,
            next_step="vLLM, SGLang and llama.cpp's server are known; without UNIT, import lists what is",
        )
    return _Found(facts, await manager.status(facts.name), server)


async def _list(args: argparse.Namespace, host: Host, manager: ServiceManager) -> int:
    rows, units = [], []
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
            engine, command = server.engine, server.command
            words = f"port {command.port}, model {clean(command.served_name or command.model)}"
            rows.append((clean(unit), engine.name, words))
            units.append({"unit": unit, "engine": engine.name, "port": command.port})
    if args.json:
        print_json({"host": args.host, "units": units})
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


def config_text(settings: HostSettings, found: _Found, *, scope: str, name: str, is_known: bool) -> str:
    """Return commented TOML for the unit, and for the host unless the config has it; proven to load."""
    service = name or _record_name(found.facts.name.removesuffix(".service"))
    host = _host_text(settings)
    text = _service_text(service, settings, found, scope)
    try:
        parse_config(f"{host}\n{text}", "what import would print")
    except ConfigError as error:
        problems = "; ".join(f"{problem.key}: {problem.text}" for problem in error.problems)
        raise Refused(f"no config can be written for {found.facts.name}: {problems}") from error
    return text if is_known else f"{host}\n{text}"


def _host_text(settings: HostSettings) -> str:
    lines = [
        f"[hosts.{_key(settings.name)}]",
        f"ssh = {_string(settings.ssh)}" + ("" if settings.ssh else "  # this machine"),
    ]
    if settings.manager == "embedded":
        lines += ['manager = "embedded"', f"directory = {_string(settings.directory)}"]
    if settings.become != "none":
        lines.append(f"become = {_string(settings.become)}")
    elif settings.ssh:
        lines.append('# become = "sudo"               # when the login user is not root')
    return "\n".join(lines) + "\n"


def _service_text(service: str, settings: HostSettings, found: _Found, scope: str) -> str:
    facts, command, status = found.facts, found.server.command, found.status
    engine = found.server.engine
    lines = [
        f"# {clean(facts.name)} on {settings.name}: {clean(status.active)} ({clean(status.sub)}), {engine.name}",
        f"# {argv_text(facts.argv)}",
        f"[services.{_key(service)}]",
        f"host = {_string(settings.name)}",
        f"unit = {_string(facts.name)}",
    ]
    if scope != "system" and settings.manager != "embedded":
        lines.append(f"scope = {_string(scope)}")
    lines.append(f"engine = {_string(engine.name)}")
    address = command.address if command.address not in {"", "0.0.0.0", "::", "[::]"} else "127.0.0.1"
    shown = f"[{address}]" if ":" in address and not address.startswith("[") else address
    lines.append(f'# endpoint = "http://{clean(shown)}:{command.port}"    # read from the command line at each trial')
    lines.append(f"# model = {_string(clean(command.served_name or command.model))}    # the same")
    if found.server.secrets:
        lines.append(
            "# The unit holds a secret, perhaps the API's key. Put it into a file that only specd can read, and:"
        )
        lines.append('# api_key_file = "/etc/specd/api.key"')
    if not status.is_running:
        lines.append("# It does not run now; a trial wants a running baseline.")
    if facts.enabled not in {"enabled", "enabled-runtime", "alias"}:
        lines.append(
            f"# It is {clean(facts.enabled) or 'not enabled'}: after a reboot of the host it would not come up."
        )
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _string(name)


def _string(text: str) -> str:
    """Return a TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c for c in escaped) + '"'
