"""What a scenario needs of a site: the service under trial as seen from outside, without specd's own code."""

import json
from pathlib import Path
from typing import Any, Protocol

__all__ = ["SCRIPT", "Site", "config_text"]

# One start takes about a second and a half; the speed story stays the same.
SCRIPT: dict[str, Any] = {
    "model_must_exist": False,
    "stages": {
        "import": 0.1,
        "config": 0.1,
        "engine": 0.1,
        "weights": 0.5,
        "compile": 0.3,
        "capture": 0.2,
        "startup": 0.1,
    },
    "base_step_ms": 5.0,
    "death_linger_s": 0.2,
}


class Site(Protocol):
    """A place where one service runs the rehearsal engine."""

    name: str
    directory: Path
    unit: str
    scope: str

    def host_config(self) -> str:
        """Return the [hosts.site] table of the config."""
        ...

    def invocation(self, unit: str = "llm.service") -> str:
        """Return the InvocationID of a unit, "" when it has none."""
        ...

    def starts(self, unit: str = "llm.service") -> list[str]:
        """Return the InvocationIDs of all starts of a unit that wrote a line, oldest first."""
        ...

    def lines(self, unit: str, invocation: str) -> list[str]:
        """Return what the journal holds of one start of a unit."""
        ...

    def is_active(self, unit: str = "llm.service") -> bool:
        """True while a unit runs."""
        ...

    def answers(self) -> bool:
        """True when the service generates a token."""
        ...

    def fingerprint(self) -> dict[str, str]:
        """Return every file that makes the baseline's unit, and whether it is enabled."""
        ...

    def traces(self) -> list[str]:
        """Return what of specd is on the host: unit files, guards, loaded units."""
        ...

    def set_baseline_environment(self, **values: str) -> None:
        """Change what the baseline's next start gets, as an operator would, in its environment file."""
        ...

    def signal_engine(self, unit: str, number: int) -> None:
        """Signal the main process of a unit; nothing happens where there is none."""
        ...

    def stop_baseline(self) -> None:
        """Stop the service as an operator would."""
        ...

    def leave_orphans(self) -> None:
        """From the engine's next start on, what it has forked outlives it; the baseline is started anew at once."""
        ...

    def leave_none(self) -> None:
        """Undo `leave_orphans`."""
        ...

    def strays(self) -> list[str]:
        """Return in words the engine's processes that are none of the baseline's."""
        ...


# Only the tests of that measurement itself have time for it.
POLICY = "[services.llm.policy]\ndrift_check = false\n"


def config_text(site: Site, extra: str = "") -> str:
    """Return a config for a daemon beside the site: short benchmark, short deadlines."""
    return f"""\
[daemon]
state_dir = {json.dumps(str(site.directory / "state"))}
socket = {json.dumps(str(site.directory / "run" / "s"))}

{site.host_config()}

[services.llm]
host = "site"
unit = {json.dumps(site.unit)}
scope = {json.dumps(site.scope)}
benchmark = "tiny"
drain_s = 1.0
stop_timeout_s = 2.0

[services.llm.deadlines]
loading_s = 30
loading_stall_s = 4
cudagraph_compile_s = 30
cudagraph_compile_stall_s = 4
ready_s = 20
benchmark_s = 60
rollback_s = 60
rollback_stall_s = 10

[services.llm.guard]
lease_s = 30
renew_s = 2

{POLICY if "policy]" not in extra else ""}
[benchmarks.tiny]
levels = [1, 2]
repeats = 2
requests = 4
prompts = "quick"
max_tokens = 24
warmup_requests = 1
first_token_s = 4
idle_s = 4
{extra}
"""
