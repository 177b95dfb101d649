"""`specd check`: every host and service of a config, looked at side by side, nothing changed."""

import asyncio
from pathlib import Path
from typing import Any

from specd.checks import Check, CheckStatus, failures
from specd.engines.engine import ServerCommand
from specd.engines.masking import mask
from specd.engines.openai_probe import Health, ServerProbe
from specd.errors import SpecdError
from specd.fleet import Fleet
from specd.hosts.gpu import gpu_memory
from specd.hosts.ssh_config import unsupported_directives
from specd.phases.context import find_server, server_address
from specd.phases.lease import lease_check
from specd.settings import Config, HostSettings, ServiceSettings

__all__ = ["check", "check_fleet"]


async def check(config: Config, runtime_dir: Path) -> dict[str, Any]:
    """Check a config without a daemon."""
    fleet = Fleet(config, runtime_dir)
    try:
        return await check_fleet(fleet)
    finally:
        await fleet.close()


async def check_fleet(fleet: Fleet) -> dict[str, Any]:
    """Return `{"hosts": [{name, checks}], "services": [{name, checks}], "ok": bool}`."""
    config = fleet.config
    hosts = await asyncio.gather(*(_host(fleet, name) for name in config.hosts))
    services = await asyncio.gather(*(_service(fleet, service) for service in config.services.values()))
    named_hosts = [{"name": name, "checks": [c.as_json() for c in checks]} for name, checks in hosts]
    named_services = [{"name": name, "checks": [c.as_json() for c in checks]} for name, checks in services]
    failed = any(c.status is CheckStatus.FAILED for _, checks in (*hosts, *services) for c in checks)
    return {"hosts": named_hosts, "services": named_services, "ok": not failed}


async def _host(fleet: Fleet, name: str) -> tuple[str, list[Check]]:
    checks = []
    host = fleet.host(name)
    try:
        await host.run(["true"], timeout_s=fleet.host_settings(name).connect_timeout_s + 15)
        checks.append(Check.passed("host.reachable", "answers"))
        gpus = await gpu_memory(host)
        if gpus is None:
            fix = "install nvidia-smi, if there are GPUs"
            checks.append(Check.unchecked("host.gpu", "no nvidia-smi: GPU facts unknown, memory gates are off", fix))
        else:
            used = ", ".join(f"{gpu.used_mib} of {gpu.total_mib} MiB" for gpu in gpus)
            checks.append(Check.passed("host.gpu", f"{len(gpus)} GPUs: {used}"))
        checks += await _ssh_config(fleet.host_settings(name))
    except SpecdError as error:
        checks.append(Check.failed("host.reachable", error.what, error.next_step))
    return name, checks


async def _ssh_config(settings: HostSettings) -> list[Check]:
    """Tell what the user's ssh configuration asks for and specd does not do."""
    if not settings.ssh:
        return []
    name = "host.ssh-config"
    found = await asyncio.to_thread(unsupported_directives, settings)
    if found:
        return [Check.warning(name, "; ".join(found), "specd connects without it; see whether it is needed")]
    return [Check.passed(name, "nothing in it is left out")]


async def _service(fleet: Fleet, service: ServiceSettings) -> tuple[str, list[Check]]:
    checks: list[Check] = []
    try:
        manager = fleet.manager(service)
        checks += await manager.preflight(service.unit)
        checks.append(lease_check(service, is_local=fleet.host(service.host).is_local))
        facts = await manager.facts(service.unit)
        server = await find_server(service, fleet.host(service.host), facts)
        status = await manager.status(service.unit)
    except SpecdError as error:
        # What preflight has found already says it better.
        if not failures(checks):
            checks.append(Check.failed(f"{error.code}.read", error.what, error.next_step))
        return service.name, checks
    command = server.command
    words = f"{server.engine.name}, model {command.model} as {command.served_name} on port {command.port}"
    if command.wrapper:
        words += f", through {command.wrapper}"
    checks.append(Check.passed("engine.recognised", mask(words, server.secrets)))
    if status.active == "active":
        checks.append(Check.passed("baseline.running", f"invocation {status.invocation}"))
        checks.append(await _health(fleet, service, command))
    else:
        words = f"{service.unit} is {status.active}"
        checks.append(Check.warning("baseline.running", words, "a trial needs it serving"))
    return service.name, checks


async def _health(fleet: Fleet, service: ServiceSettings, command: ServerCommand) -> Check:
    address, port = server_address(service, command)
    try:
        async with fleet.host(service.host).reach(address, port) as route, ServerProbe(route, model="") as probe:
            health = await probe.health()
    except SpecdError as error:
        return Check.failed("baseline.health", error.what, error.next_step)
    if health is Health.UP:
        return Check.passed("baseline.health", f"{address}:{port} answers")
    return Check.warning("baseline.health", f"{address}:{port} {health.words}", "wait, or correct `endpoint`")
