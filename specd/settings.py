"""What can be configured, as frozen records; specd/config/ reads them from TOML and is the only validator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specd.engines.engine import FlagValue

__all__ = [
    "BenchSettings",
    "Config",
    "DaemonSettings",
    "Deadlines",
    "GuardSettings",
    "HostSettings",
    "Policy",
    "ServiceSettings",
    "TrialSpec",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """[daemon]. Empty paths mean: by user (/var/lib/specd and /run/specd for root, XDG directories otherwise)."""

    state_dir: str = ""
    socket: str = ""
    tcp: str = ""
    token_file: str = ""
    log_level: str = "info"
    log_format: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """[hosts.NAME]. `ssh` is what one would type after `ssh` (alias or user@host:port); "" is this machine.

    `manager` is systemd or embedded (then `directory` holds its units). `become` is none or sudo.
    """

    name: str
    ssh: str = ""
    ssh_config: str = ""
    known_hosts: str = ""
    become: str = "none"
    manager: str = "systemd"
    directory: str = ""
    unit_dir: str = ""
    python: str = ""
    connect_timeout_s: float = 15.0
    keepalive_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """[services.NAME.deadlines]: seconds a state may take in all, and (`_stall_s`) without any progress."""

    baseline_s: float = 3600.0
    write_unit_s: float = 120.0
    verify_s: float = 300.0
    restart_s: float = 900.0
    loading_s: float = 7200.0
    loading_stall_s: float = 900.0
    cudagraph_compile_s: float = 3600.0
    cudagraph_compile_stall_s: float = 1200.0
    ready_s: float = 600.0
    benchmark_s: float = 7200.0
    benchmark_stall_s: float = 300.0
    rollback_s: float = 7200.0
    rollback_stall_s: float = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """[services.NAME.guard]: the dead-man's switch on the host; renewed every `renew_s`, fires `lease_s` after the
    last."""

    lease_s: float = 900.0
    renew_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """[services.NAME.policy]: what decides and what follows.

    `metric` is tpot, ttft or output_tok_s, read at concurrency `level` (0: the plan's lowest). `margin` is the relative
    difference that counts as equivalent. `after_better` is restore or keep.
    """

    metric: str = "tpot"
    level: int = 0
    margin: float = 0.03
    confidence: float = 0.95
    after_better: str = "restore"
    keep_unit: bool = False
    max_error_rate: float = 0.02
    baseline_fresh_s: float = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """[benchmarks.NAME]: a benchmark plan."""

    name: str
    levels: tuple[int, ...] = (1, 4)
    repeats: int = 3
    requests: int = 12
    prompts: str = "diverse"
    max_tokens: int = 256
    temperature: float = 0.0
    warmup_requests: int = 4
    first_token_s: float = 120.0
    idle_s: float = 60.0
    seed: int = 0
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """[services.NAME]: a production LLM server. `endpoint` is as the host itself sees it; "" means from its argv.

    `scope` is system or user; `engine` auto, vllm, sglang, llamacpp or rehearsal; `api_key_file` and `api_key_env`
    say where
    the client's key is. `drain_s` waits for running requests before the baseline stops. `stop_timeout_s` bounds a stop
    before SIGKILL.
    """

    name: str
    host: str
    unit: str
    scope: str = "system"
    engine: str = "auto"
    endpoint: str = ""
    model: str = ""
    api_key_file: str = ""
    api_key_env: str = ""
    benchmark: str = "default"
    drain_s: float = 10.0
    stop_timeout_s: float = 15.0
    deadlines: Deadlines = field(default_factory=Deadlines)
    guard: GuardSettings = field(default_factory=GuardSettings)
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole config file; `path` is where it came from."""

    path: str
    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    hosts: Mapping[str, HostSettings] = field(default_factory=dict)
    services: Mapping[str, ServiceSettings] = field(default_factory=dict)
    benchmarks: Mapping[str, BenchSettings] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """[[trial]] of a trial file: what differs from the baseline. In `env`, None unsets a variable.

    `keep` overrides the policy's `after_better`; `keep_unit` leaves the candidate's unit file for a look.
    """

    name: str
    service: str
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    benchmark: str = ""
    after_better: str = ""
    keep_unit: bool = False
    note: str = ""
    rehearsal: bool = False
