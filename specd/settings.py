"""What can be configured, as frozen records; specd/config/ reads them from TOML and is the only validator.

The rules in the annotations (specd/constraints.py) are applied there, not when a record is made in code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from specd.constraints import (
    Mark,
    env_name,
    figure_limits,
    host_path,
    http_url,
    listen_address,
    no_option,
    one_of,
    prompt_sets,
    record_name,
    unit_name,
    window,
    within,
    without_keys,
)
from specd.window import ALWAYS

__all__ = [
    "BenchSettings",
    "Config",
    "DaemonSettings",
    "Deadlines",
    "FlagValue",
    "GuardSettings",
    "HostSettings",
    "Policy",
    "ServiceSettings",
    "TrialSpec",
]

# A flag's value in a trial file: None removes it, True/False switch it, a table or list of tables becomes JSON.
FlagValue = None | bool | int | float | str | list[Any] | dict[str, Any]

Given = Annotated[str, Mark.GIVEN]
LocalPath = Annotated[str, Mark.LOCAL_PATH]
HostPath = Annotated[str, host_path]
_MONTH_S = 31 * 86400
Seconds = Annotated[float, within(0, _MONTH_S, above=True)]
SecondsOrNone = Annotated[float, within(0, _MONTH_S)]
Share = Annotated[float, within(0, 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """[daemon]. Empty paths mean: by user (/var/lib/specd and /run/specd for root, XDG directories otherwise)."""

    state_dir: LocalPath = ""
    socket: LocalPath = ""
    tcp: Annotated[str, listen_address] = ""
    token_file: LocalPath = ""
    log_level: Annotated[str, one_of("debug", "info", "warning", "error")] = "info"
    log_format: Annotated[str, one_of("auto", "json", "text")] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """[hosts.NAME]. `ssh` is what one would type after `ssh` (alias or user@host:port); "" is this machine.

    `manager` is systemd or, on this machine only, embedded (then `directory` holds its units). `become` is none or
    sudo.
    """

    name: Given
    ssh: Annotated[str, no_option] = ""
    ssh_config: LocalPath = ""
    known_hosts: LocalPath = ""
    become: Annotated[str, one_of("none", "sudo")] = "none"
    manager: Annotated[str, one_of("systemd", "embedded")] = "systemd"
    directory: LocalPath = ""
    unit_dir: HostPath = ""
    python: Annotated[str, no_option] = ""
    connect_timeout_s: Seconds = 15.0
    keepalive_s: Seconds = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """[services.NAME.deadlines]: seconds a state may take in all, and (`_stall_s`) without any progress.

    `total_s` bounds all the time in which the candidate has the service; 0 means the sum of its states' deadlines.
    """

    baseline_s: Seconds = 3600.0
    write_unit_s: Seconds = 120.0
    verify_s: Seconds = 300.0
    restart_s: Seconds = 900.0
    loading_s: Seconds = 7200.0
    loading_stall_s: Seconds = 900.0
    cudagraph_compile_s: Seconds = 3600.0
    cudagraph_compile_stall_s: Seconds = 1200.0
    ready_s: Seconds = 600.0
    benchmark_s: Seconds = 7200.0
    benchmark_stall_s: Seconds = 300.0
    rollback_s: Seconds = 7200.0
    rollback_stall_s: Seconds = 1200.0
    total_s: SecondsOrNone = 0.0

    @property
    def candidate_s(self) -> float:
        """Seconds that the candidate may have the service, from the restart on."""
        each = self.restart_s + self.loading_s + self.cudagraph_compile_s + self.ready_s + self.benchmark_s
        return self.total_s or each


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """[services.NAME.guard]: the dead-man's switch on the host; renewed every `renew_s`, fires `lease_s` after the
    last."""

    lease_s: Seconds = 900.0
    renew_s: Seconds = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """[services.NAME.policy]: what decides and what follows.

    `metric` is tpot, ttft or output_tok_s, read at concurrency `level` (0: the plan's lowest). `margin` is the relative
    difference that counts as equivalent. `after_better` is restore or keep. `sequential`: the candidate's measurement
    may stop as soon as the answer is sure. `drift_check`: the restored baseline is measured once more, shortly.
    `limits` are figures that must not get worse by more (ttft_p95, tpot_p95, e2e_p95 relatively, error_rate
    absolutely).
    """

    metric: Annotated[str, one_of("tpot", "ttft", "output_tok_s")] = "tpot"
    level: Annotated[int, within(0, 4096)] = 0
    margin: Annotated[float, within(0, 1, below=True)] = 0.03
    confidence: Annotated[float, within(0.5, 1, below=True)] = 0.95
    after_better: Annotated[str, one_of("restore", "keep")] = "restore"
    keep_unit: bool = False
    sequential: bool = True
    drift_check: bool = True
    limits: Annotated[Mapping[str, Any], figure_limits] = field(default_factory=dict)
    max_error_rate: Share = 0.02
    baseline_fresh_s: SecondsOrNone = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """[benchmarks.NAME]: a benchmark plan.

    `levels` are concurrencies, `rates` requests per second, measured after them. `arrivals` is poisson,
    constant or a file of timestamps. `prompts` names a set, or several with weights.
    """

    name: Given
    levels: tuple[Annotated[int, within(1, 4096)], ...] = (1, 4)
    rates: tuple[Annotated[float, within(0.001, 10_000)], ...] = ()
    arrivals: str = "poisson"
    ramp_s: SecondsOrNone = 0.0
    repeats: Annotated[int, within(1, 1000)] = 3
    requests: Annotated[int, within(1, 1_000_000)] = 12
    prompts: Annotated[str | Mapping[str, float], prompt_sets] = "diverse"
    max_tokens: Annotated[int, within(1, 1_000_000)] = 256
    temperature: Annotated[float, within(0, 5)] = 0.0
    warmup_requests: Annotated[int, within(0, 10_000)] = 4
    first_token_s: Seconds = 120.0
    idle_s: Seconds = 60.0
    seed: Annotated[int, within(0, 2**63 - 1)] = 0
    extra_body: Annotated[
        Mapping[str, Any], without_keys("messages", "model", "prompt", "stream", "stream_options")
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """[services.NAME]: a production LLM server. `endpoint` is as the host itself sees it; "" means from its argv.

    `scope` is system or user; `engine` auto, vllm, sglang, llamacpp or rehearsal; `api_key_file` and `api_key_env`
    say where
    the client's key is. `drain_s` waits for running requests before the baseline stops. `stop_timeout_s` bounds a stop
    before SIGKILL. `windows` say when a trial may begin, by this machine's local time.
    """

    name: Given
    host: Annotated[str, record_name]
    unit: Annotated[str, unit_name]
    scope: Annotated[str, one_of("system", "user")] = "system"
    engine: Annotated[str, one_of("auto", "vllm", "sglang", "llamacpp", "rehearsal")] = "auto"
    endpoint: Annotated[str, http_url] = ""
    model: str = ""
    api_key_file: LocalPath = ""
    api_key_env: Annotated[str, env_name] = ""
    benchmark: Annotated[str, record_name] = "default"
    drain_s: SecondsOrNone = 10.0
    stop_timeout_s: Seconds = 15.0
    windows: tuple[Annotated[str, window], ...] = (ALWAYS,)
    deadlines: Deadlines = field(default_factory=Deadlines)
    guard: GuardSettings = field(default_factory=GuardSettings)
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole config file; `path` is where it came from."""

    path: Given
    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    hosts: Mapping[str, HostSettings] = field(default_factory=dict)
    services: Mapping[str, ServiceSettings] = field(default_factory=dict)
    benchmarks: Mapping[str, BenchSettings] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """[[trial]] of a trial file: what differs from the baseline. In `env`, None unsets a variable.

    `benchmark` and `after_better` override the service's when not ""; `keep_unit` leaves the candidate's unit file.
    """

    name: Annotated[str, record_name]
    service: Annotated[str, record_name]
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    benchmark: str = ""
    after_better: Annotated[str, one_of("", "restore", "keep")] = ""
    keep_unit: bool = False
    note: Annotated[str, Mark.FREE_TEXT] = ""
    rehearsal: Annotated[bool, Mark.GIVEN] = False
