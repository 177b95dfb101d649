"""Making a candidate unit: everything the baseline's unit sets, with another command and rules of its own."""

from collections.abc import Mapping, Sequence

from specd.errors import UnitError
from specd.services.service import Candidate, UnitFacts
from specd.services.systemd.directives import directives_of, stays
from specd.services.systemd.envfile import encode_environment, is_variable_name
from specd.services.systemd.specifier import UnitName, resolve_name_specifiers
from specd.services.systemd.unitfile import Assignment
from specd.services.systemd.words import check_text, check_total, encode_command, encode_word

__all__ = ["render_candidate"]

_TYPES = frozenset({"simple", "exec", "notify", "notify-reload", "idle"})
_TYPE_REASONS = {
    "forking": "its server leaves the process that systemd starts, so the trial could not tell one start from another",
    "oneshot": "it is a job that ends, not a server",
    "dbus": "its D-Bus name can belong to one unit only",
}
_NAMES_DEPENDENCIES = frozenset({"Requires", "Wants", "BindsTo", "Requisite"})
_DEFAULT_SLICES = frozenset({"", "-.slice", "system.slice", "app.slice"})
_KNOWN_PREFIXES = frozenset("-@:+!")


def render_candidate(
    base: UnitFacts,
    *,
    name: str,
    trial: str,
    installation: str,
    argv: tuple[str, ...],
    env: Mapping[str, str | None],
    stop_timeout_s: float,
) -> Candidate:
    """Make the candidate; the same input gives the same bytes. Raises UnitError for what can't be expressed."""
    _refuse_impossible(base)
    _check_environment(env)
    # %d means another directory in a unit of another name.
    theirs, ours = f"/credentials/{base.name}", f"/credentials/{name}"
    argv = tuple(word.replace(theirs, ours) for word in argv)
    environment = {key: value.replace(theirs, ours) for key, value in _intended(base, env).items()}
    check_total([*argv, *(f"{key}={value}" for key, value in environment.items())])
    items = _carried(base)
    directory = base.extra.get("unit_dir", "/run/systemd/system")
    path = f"{directory}/{name}"
    changes = {key: value for key, value in env.items() if value is not None}
    side_path = f"{directory}/{name.removesuffix('.service')}.env"
    mode = _mode(base)
    marks = {"Trial": trial, "Installation": installation, "Baseline": base.name, "Mode": mode}
    sections = [
        _header(base, trial, installation),
        ["[Unit]", f"Description=specd trial {trial} of {base.name}".replace("%", "%%")],
        _unit_lines(base, items),
        ["StartLimitIntervalSec=0", "", "[Service]"],
        [f"{item.key}={item.value}" for item in items if item.section == "Service"],
        _service_lines(base, argv, env, stop_timeout_s, side_path if changes else ""),
        ["", "[X-Specd]", *(f"X-Specd-{key}={value}" for key, value in marks.items())],
    ]
    content = "\n".join(line for lines in sections for line in lines) + "\n"
    return Candidate(
        name=name,
        trial=trial,
        path=path,
        content=content.encode(),
        argv=argv,
        environment=environment,
        side_files={side_path: encode_environment(changes).encode()} if changes else {},
    )


def _intended(base: UnitFacts, env: Mapping[str, str | None]) -> dict[str, str]:
    merged: dict[str, str | None] = {**base.environment, **env}
    return {key: value for key, value in merged.items() if value is not None}


def _refuse_impossible(base: UnitFacts) -> None:
    kind = base.extra.get("Type", "simple")
    if kind not in _TYPES:
        why = _TYPE_REASONS.get(kind, "specd does not know how such a unit says that it is up")
        raise UnitError(f"{base.name} has Type={kind}: {why}", unit=base.name)
    sockets = [unit for unit in base.extra.get("TriggeredBy", "").split() if unit.endswith(".socket")]
    if sockets:
        raise UnitError(f"{base.name} gets its socket from {sockets[0]}; a second unit can't have it", unit=base.name)
    if base.extra.get("Transient") == "yes":
        raise UnitError(
            f"{base.name} is a transient unit: systemd forgets it when it stops, so it could not be brought back",
            unit=base.name,
            next_step="give the service a unit file",
        )
    unknown = set(base.extra.get("exec_prefix", "")) - _KNOWN_PREFIXES
    if unknown:
        raise UnitError(f"{base.name} has an ExecStart= prefix that specd does not know", unit=base.name)


def _check_environment(env: Mapping[str, str | None]) -> None:
    for name, value in env.items():
        if not is_variable_name(name):
            raise UnitError(f"{name!r} is not a name systemd takes for an environment variable")
        if value is not None:
            check_text(f"{name}={value}", f"environment variable {name}")


def _carried(base: UnitFacts) -> list[Assignment]:
    """Return what the candidate takes over, free of specifiers that name the baseline.

    Resets stay in place: replayed in order, they do what they did.
    """
    unit = UnitName(base.name, base.extra.get("real_path", base.fragment_path))
    found = []
    for item in directives_of(base):
        if item.key == "Sockets" and item.value:
            raise UnitError(
                f"{base.name} takes sockets from {item.value}; a second unit can't have them", unit=base.name
            )
        if stays(base, item):
            found.append(Assignment(item.section, item.key, resolve_name_specifiers(item.key, item.value, unit)))
    return found


def _header(base: UnitFacts, trial: str, installation: str) -> list[str]:
    return [
        f"# Written by specd (installation {installation}) for trial {trial}; removed when the trial ends.",
        f"# Made from {base.name}:",
        *(f"#   {path}" for path in [base.fragment_path, *base.drop_in_paths]),
        "",
    ]


def _unit_lines(base: UnitFacts, items: Sequence[Assignment]) -> list[str]:
    lines = []
    for item in items:
        if item.section != "Unit":
            continue
        value = item.value
        if item.key == "Conflicts":
            # A unit that conflicts with the baseline by its own name would never get to run beside it.
            value = " ".join(unit for unit in value.split() if unit != base.name)
            if item.value and not value:
                continue
        lines.append(f"{item.key}={value}")
    return lines + _links(base, items)


def _links(base: UnitFacts, items: Sequence[Assignment]) -> list[str]:
    """Write the dependencies that the baseline has through .wants/ and .requires/ directories, not through its text."""
    written = {unit for item in items if item.section == "Unit" for unit in item.value.split()}
    lines = []
    for key in sorted(_NAMES_DEPENDENCIES):
        linked = [
            unit
            for unit in base.extra.get(key, "").split()
            if unit.endswith((".service", ".mount")) and unit not in written and unit != "-.mount"
        ]
        if linked:
            lines.append(f"{key}={' '.join(linked)}")
    return lines


def _service_lines(
    base: UnitFacts,
    argv: tuple[str, ...],
    env: Mapping[str, str | None],
    stop_timeout_s: float,
    side_path: str,
) -> list[str]:
    entries = base.extra.get("UnsetEnvironment", "").split("\n")
    unset = [entry for entry in entries if entry and entry.partition("=")[0] not in env]
    unset += [key for key, value in env.items() if value is None]
    lines = [f"UnsetEnvironment={' '.join(encode_word(entry, variables=False) for entry in unset)}"] if unset else []
    if side_path:
        lines.append(f"EnvironmentFile={side_path.replace('%', '%%')}")
    if base.extra.get("DynamicUser") == "yes" and base.user:
        # By default it is named after the unit; what belongs to the baseline's must stay readable for the candidate.
        lines.append(f"User={base.user}")
    if (slice_unit := base.extra.get("Slice", "")) not in _DEFAULT_SLICES:
        # Instances of a template have a slice of their own by default.
        lines.append(f"Slice={slice_unit.replace('%', '%%')}")
    same_program = argv[:1] == base.argv[:1]
    command = encode_command(
        argv,
        path=base.extra.get("exec_path", "") if same_program else "",
        prefix="".join(char for char in base.extra.get("exec_prefix", "") if char in "+!"),
    )
    return [
        *lines,
        f"ExecStart={command}",
        "Restart=no",
        "TimeoutStartSec=infinity",
        f"TimeoutStopSec={stop_timeout_s:.3f}s",
        # SIGTERM to the main process; once it is gone or the time is up, SIGKILL to all that is left of the cgroup.
        "KillMode=mixed",
        "SendSIGKILL=yes",
        "FinalKillSignal=SIGKILL",
        "StandardOutput=journal",
        "StandardError=journal",
        "LogRateLimitIntervalSec=0",
    ]


def _mode(base: UnitFacts) -> str:
    """Return the unit file's mode: not wider than any file the command's words may come from."""
    return base.extra.get("file_mode", "644")
