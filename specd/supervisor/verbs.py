"""What can be asked of the supervisor, but for the journal: a verb takes a request and returns its answer's value."""

import hashlib
import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specd.supervisor.guard import Guard
from specd.supervisor.proc import command_line, listeners, usage
from specd.supervisor.service import State
from specd.supervisor.supervisor import NoSuchUnit, Supervisor
from specd.supervisor.unit import BadUnit, base_environment, normal_name, read_environment

__all__ = ["BadRequest", "Request", "Verbs", "field_of"]

PORTS = range(1, 65536)
Request = Mapping[str, Any]


class BadRequest(Exception):
    """A request lacks a field, has one of the wrong type, or asks for what can't be done now."""


def field_of(request: Request, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """Return a field of the wanted type; raises BadRequest."""
    value = request.get(key, default)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadRequest(f"{key} is missing or of the wrong type")
    return value


def _seconds(request: Request, key: str) -> float:
    value = float(field_of(request, key, (int, float)))
    if not 0 < value < 10**7:
        raise BadRequest(f"{key} must be a number of seconds above 0")
    return value


def _guard_json(guard: Guard | None) -> dict[str, Any] | None:
    if guard is None:
        return None
    return asdict(guard) | {"remaining_s": guard.remaining_s}


class Verbs:
    """The verbs of one supervisor, by name in `by_name`."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.by_name: dict[str, Callable[[Request], Any]] = {
            "ping": self._ping,
            "units": self._units,
            "facts": self._facts,
            "status": self._status,
            "start": self._start,
            "stop": self._stop,
            "kill": self._kill,
            "clear-failure": self._clear_failure,
            "reload": self._reload,
            "processes": self._processes,
            "ports": self._ports,
            "guard-arm": self._guard_arm,
            "guard-renew": self._guard_renew,
            "guard-disarm": self._guard_disarm,
            "guard": self._guard,
            "shutdown": self._shutdown,
        }

    def answer(self, request: Request) -> Any:
        """Do what a request says; raises BadRequest, NoSuchUnit, BadUnit, OSError."""
        verb = self.by_name.get(str(request.get("do")))
        if verb is None:
            raise BadRequest(f"there is no verb {request.get('do')!r}")
        return verb(request)

    def _ping(self, _request: Request) -> Any:
        return {"pid": os.getpid(), "directory": str(self._supervisor.directory), "life": self._supervisor.life}

    def _units(self, _request: Request) -> Any:
        self._supervisor.forget_gone()
        units: list[dict[str, Any]] = []
        for name, service in sorted(self._supervisor.services.items()):
            file = service.file
            units.append(
                {
                    "name": name,
                    "path": file.path,
                    "trial": file.trial,
                    "installation": file.installation,
                    "enabled": file.enabled,
                    **asdict(service.state),
                }
            )
        broken = [{"name": name, "error": error} for name, error in sorted(self._supervisor.broken.items())]
        return {"units": units, "broken": broken}

    def _facts(self, request: Request) -> Any:
        file = self._supervisor.find_sound(field_of(request, "unit", str)).file
        environment, digests = read_environment(file)
        try:
            content = Path(file.path).read_bytes()
        except OSError:
            content = b""
        return {
            "name": file.name,
            "path": file.path,
            "description": file.description,
            "argv": file.argv,
            "environment": environment,
            "base_environment": base_environment(),
            "user": pwd.getpwuid(os.getuid()).pw_name,
            "working_directory": file.working_directory or base_environment()["HOME"],
            "stop_timeout_s": file.stop_timeout_s,
            "restart": file.restart,
            "enabled": file.enabled,
            "files": {file.path: hashlib.sha256(content).hexdigest(), **digests},
            "text": content.decode(errors="replace"),
        }

    def _status(self, request: Request) -> Any:
        try:
            service = self._supervisor.find(field_of(request, "unit", str))
        except NoSuchUnit:
            return {"exists": False, "needs_reload": False, **asdict(State(result=""))}
        except BadUnit:
            # A file that can't be understood is there all the same; a name that can't be one is not.
            is_there = request["unit"] in self._supervisor.broken
            return {"exists": is_there, "needs_reload": False, **asdict(State(result=""))}
        return {"exists": True, "needs_reload": self._supervisor.needs_reload(service), **asdict(service.state)}

    def _start(self, request: Request) -> Any:
        if self._supervisor.is_ending:
            raise BadRequest("the supervisor is ending; nothing starts any more")
        service = self._supervisor.find_sound(field_of(request, "unit", str))
        service.start()
        return asdict(service.state)

    def _stop(self, request: Request) -> Any:
        service = self._supervisor.find(field_of(request, "unit", str))
        service.stop()
        return asdict(service.state)

    def _kill(self, request: Request) -> None:
        self._supervisor.find(field_of(request, "unit", str)).kill()

    def _clear_failure(self, request: Request) -> None:
        self._supervisor.find(field_of(request, "unit", str)).clear_failure()

    def _reload(self, _request: Request) -> Any:
        self._supervisor.reload()
        return {"broken": self._supervisor.broken}

    def _processes(self, request: Request) -> Any:
        try:
            members = self._supervisor.find(field_of(request, "unit", str)).members()
        except (NoSuchUnit, BadUnit):
            members = []
        return [usage(stat)._asdict() for stat in members]

    def _ports(self, request: Request) -> Any:
        port = field_of(request, "port", int)
        if port not in PORTS:
            raise BadRequest("port must be a number from 1 to 65535")
        return [
            {"pid": pid, "unit": self._supervisor.unit_of(pid), "command": " ".join(command_line(pid)) if pid else ""}
            for pid in listeners(port)
        ]

    def _guard_arm(self, request: Request) -> Any:
        trial = field_of(request, "trial", str)
        baseline = self._supervisor.find(field_of(request, "baseline", str)).file.name
        candidate = normal_name(field_of(request, "candidate", str))
        if not self._supervisor.guards.arm(trial, candidate, baseline, _seconds(request, "lease_s")):
            raise OSError(f"the guard can't be stored in {self._supervisor.directory}")
        return _guard_json(self._supervisor.guards.get(trial))

    def _guard_renew(self, request: Request) -> Any:
        return _guard_json(self._supervisor.guards.renew(field_of(request, "trial", str), _seconds(request, "lease_s")))

    def _guard_disarm(self, request: Request) -> bool:
        trial = field_of(request, "trial", str)
        guard = self._supervisor.guards.get(trial)
        if guard is not None and guard.state == "fired" and not field_of(request, "fired_too", bool, True):
            return False
        self._supervisor.guards.disarm(trial)
        return True

    def _guard(self, request: Request) -> Any:
        return _guard_json(self._supervisor.guards.get(field_of(request, "trial", str)))

    def _shutdown(self, request: Request) -> None:
        self._supervisor.request_end(quick=field_of(request, "quick", bool, False))
