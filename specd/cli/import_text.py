"""The config that `specd import` prints: commented TOML, proven to load."""

import re
from collections.abc import Mapping, Sequence

from specd.checks import Check, CheckStatus
from specd.cli.show import argv_text
from specd.cli.text import clean, duration
from specd.config import parse_config
from specd.engines.engine import Stage
from specd.engines.server import Server
from specd.errors import ConfigError, Refused
from specd.services.service import UnitFacts, UnitStatus
from specd.settings import Deadlines, HostSettings
from specd.start_times import Started

__all__ = ["config_text", "record_name"]

_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")
# A deadline below this many times what the last start took is too near.
_ROOM = 2.0
_STAGE_WORDS = {
    Stage.LAUNCH: "launch",
    Stage.CONFIG: "configuration",
    Stage.WEIGHTS: "weights",
    Stage.COMPILE: "compilation",
    Stage.CAPTURE: "CUDA graphs",
}


def config_text(
    settings: HostSettings,
    facts: UnitFacts,
    status: UnitStatus,
    server: Server,
    started: Started,
    warnings: Sequence[Check],
    *,
    scope: str,
    name: str,
    is_known: bool,
) -> str:
    """Return TOML for the unit, and for the host unless the config has it."""
    service = name or record_name(facts.name.removesuffix(".service"))
    host = _host_text(settings)
    lines = [
        *_told(settings, facts, status, server, started),
        *_table(service, settings, facts, server, scope),
        *_hints(facts, status, server),
        *(f"# warning: {clean(check.evidence)}" for check in warnings if check.status is not CheckStatus.PASSED),
        *_deadlines(service, started.took_s),
    ]
    text = "\n".join(lines) + "\n"
    try:
        parse_config(f"{host}\n{text}", "what import would print")
    except ConfigError as error:
        problems = "; ".join(f"{problem.key}: {problem.text}" for problem in error.problems)
        raise Refused(f"no config can be written for {facts.name}: {problems}") from error
    return text if is_known else f"{host}\n{text}"


def record_name(text: str) -> str:
    """Return a text as the name of a record."""
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-._")[:63] or "host"


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


def _told(settings: HostSettings, facts: UnitFacts, status: UnitStatus, server: Server, started: Started) -> list[str]:
    """Say what the unit is, in comments."""
    command = server.command
    version = f" {clean(started.facts['version'])}" if started.facts.get("version") else ""
    engine = f"{server.engine.name}{version}"
    lines = [
        f"# {clean(facts.name)} on {settings.name}: {clean(status.active)} ({clean(status.sub)}), {engine}",
        f"# {argv_text(facts.argv)}",
        f"# model: {clean(command.model)}",
    ]
    if command.wrapper:
        lines.append(f"# started through: {clean(command.wrapper)}")
    if command.file_flags.path:
        lines.append(f"# more flags in: {clean(command.file_flags.path)}")
    if gpus := _gpus(server, facts.environment):
        lines.append(f"# GPUs: {gpus}")
    if started.took_s:
        stages = ", ".join(
            f"{_STAGE_WORDS[stage]} {duration(seconds)}"
            for stage, seconds in started.took_s.items()
            if stage in _STAGE_WORDS and seconds >= 0.05
        )
        lines.append(
            f"# its last start took {duration(sum(started.took_s.values()))}" + (f": {stages}" if stages else "")
        )
    return lines


def _gpus(server: Server, environment: Mapping[str, str]) -> str:
    flags = server.command.flags
    ranks = 1
    for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "tp-size", "dp-size"):
        text = str(flags.get(name, 1))
        ranks *= int(text) if text.isdigit() else 1
    visible = {**environment, **server.line.environment}.get("CUDA_VISIBLE_DEVICES")
    named = f" (CUDA_VISIBLE_DEVICES={clean(visible)})" if visible else ""
    return f"{ranks}{named}" if ranks > 1 or named else ""


def _table(service: str, settings: HostSettings, facts: UnitFacts, server: Server, scope: str) -> list[str]:
    command = server.command
    lines = [
        f"[services.{_key(service)}]",
        f"host = {_string(settings.name)}",
        f"unit = {_string(facts.name)}",
    ]
    if scope != "system" and settings.manager != "embedded":
        lines.append(f"scope = {_string(scope)}")
    lines.append(f"engine = {_string(server.engine.name)}")
    address = command.address if command.address not in {"", "0.0.0.0", "::", "[::]"} else "127.0.0.1"
    shown = f"[{address}]" if ":" in address and not address.startswith("[") else address
    lines.append(f'# endpoint = "http://{clean(shown)}:{command.port}"    # read from the command line at each trial')
    lines.append(f"# model = {_string(clean(command.served_name or command.model))}    # the same")
    return lines


def _hints(facts: UnitFacts, status: UnitStatus, server: Server) -> list[str]:
    lines = []
    if server.secrets:
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
    return lines


def _deadlines(service: str, took_s: Mapping[str, float]) -> list[str]:
    """Return deadlines where the last start came near the default ones."""
    after = Stage.ORDER.index(Stage.WEIGHTS) + 1
    loading_s = sum(took_s.get(stage, 0.0) for stage in Stage.ORDER[:after])
    compile_s = sum(took_s.get(stage, 0.0) for stage in Stage.ORDER[after:])
    usual = Deadlines()
    wanted = {}
    if loading_s * _ROOM > usual.loading_s:
        wanted["loading_s"] = loading_s
    if compile_s * _ROOM > usual.cudagraph_compile_s:
        wanted["cudagraph_compile_s"] = compile_s
    if (loading_s + compile_s) * _ROOM > usual.rollback_s:
        wanted["rollback_s"] = loading_s + compile_s
    if not wanted:
        return []
    lines = [f"{name} = {seconds * 3:.0f}" for name, seconds in wanted.items()]
    return ["", f"[services.{_key(service)}.deadlines]    # three times what the last start took", *lines]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _string(name)


def _string(text: str) -> str:
    """Return a TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c for c in escaped) + '"'
