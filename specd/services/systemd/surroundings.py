"""What systemd itself puts into a process's environment: by the unit's user, its directories, its credentials."""

from collections.abc import Mapping, Sequence

from specd.errors import BadAnswer, FileProblem
from specd.services.systemd.bus import Properties
from specd.services.systemd.envfile import is_variable_name
from specd.services.systemd.scope import Scope

__all__ = ["assignments", "brought"]

_DIRECTORIES = {
    "RuntimeDirectory": "RUNTIME_DIRECTORY",
    "StateDirectory": "STATE_DIRECTORY",
    "CacheDirectory": "CACHE_DIRECTORY",
    "LogsDirectory": "LOGS_DIRECTORY",
    "ConfigurationDirectory": "CONFIGURATION_DIRECTORY",
}
_SYSTEM_ROOTS = {
    "RUNTIME_DIRECTORY": "/run",
    "STATE_DIRECTORY": "/var/lib",
    "CACHE_DIRECTORY": "/var/cache",
    "LOGS_DIRECTORY": "/var/log",
    "CONFIGURATION_DIRECTORY": "/etc",
}
# A user's own directories: the variable that names the root, where it is without one, what lies below.
_USER_ROOTS = {
    "RUNTIME_DIRECTORY": ("XDG_RUNTIME_DIR", "", ""),
    "STATE_DIRECTORY": ("XDG_STATE_HOME", ".local/state", ""),
    "CACHE_DIRECTORY": ("XDG_CACHE_HOME", ".cache", ""),
    "LOGS_DIRECTORY": ("XDG_STATE_HOME", ".local/state", "/log"),
    "CONFIGURATION_DIRECTORY": ("XDG_CONFIG_HOME", ".config", ""),
}
# Before this version state and logs lay in a user's configuration.
_STATE_APART = 254
_CREDENTIALS = (
    "LoadCredential", "LoadCredentialEncrypted", "SetCredential", "SetCredentialEncrypted", "ImportCredential",
)  # fmt: skip
# What systemd sets anew at each start.
_OF_A_START = frozenset((
    "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MANAGERPID", "MANAGERPIDFDID", "NOTIFY_SOCKET", "FDSTORE",
    "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES", "TERM",
    "LOG_NAMESPACE", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE",
))  # fmt: skip
# systemd makes this user up itself, without a home.
_SYNTHETIC = frozenset({"nobody", "65534"})
_NO_SHELLS = frozenset({"", "/", "/bin/false", "/usr/bin/false", "/sbin/nologin", "/usr/sbin/nologin", "/bin/nologin"})


async def brought(
    scope: Scope, unit: str, properties: Properties, given: Mapping[str, str], version: int
) -> tuple[dict[str, str], frozenset[str]]:
    """Return the variables that a unit's process has apart from those it sets, and the names that can't be told.

    `given` is what the manager hands to every unit; each source that follows overrides it, in systemd's order.
    """
    passed, untold = await _passed(scope, properties.texts("PassEnvironment"), given)
    whole = {
        **given,
        **await _of_user(scope, properties),
        **_of_directories(scope, properties, given, version),
        **_of_unit(scope, unit, properties, given),
        **passed,
    }
    return whole, untold


def assignments(entries: tuple[str, ...]) -> dict[str, str]:
    """Return the variables of a list of NAME=value; what systemd would not take is left out."""
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, separator, value in pairs if separator and is_variable_name(name)}


async def _of_user(scope: Scope, properties: Properties) -> dict[str, str]:
    """Return what a unit's user brings: systemd sets HOME, USER, LOGNAME and SHELL from the user database.

    A systemd that knows SetLoginEnvironment= sets USER always, the others only where that setting holds.
    """
    user, has_switch = properties.text("User"), "SetLoginEnvironment" in properties
    if scope.is_user or not (user or has_switch):
        return {}
    found = await _person(scope, user or "root", is_made_up=properties.flag("DynamicUser") or user in _SYNTHETIC)
    return found if properties.flag("SetLoginEnvironment") or not has_switch else {"USER": found["USER"]}


async def _person(scope: Scope, user: str, *, is_made_up: bool) -> dict[str, str]:
    if is_made_up:
        # Neither home nor shell, though the user database may know it.
        name = "nobody" if user in _SYNTHETIC else user
        return {"USER": name, "LOGNAME": name}
    done = await scope.host.run(["getent", "passwd", "--", user], check=False)
    if done.status != 0:
        return {"USER": user, "LOGNAME": user}
    fields = done.text.rstrip("\n").split(":")
    if len(fields) < 7:
        raise BadAnswer(f"getent passwd {user} printed {done.text!r}", host=scope.host.name)
    found = {"USER": fields[0], "LOGNAME": fields[0]}
    if fields[5] not in {"", "/"}:
        found["HOME"] = fields[5]
    if fields[6] not in _NO_SHELLS:
        found["SHELL"] = fields[6]
    return found


def _of_directories(scope: Scope, properties: Properties, given: Mapping[str, str], version: int) -> dict[str, str]:
    """Return RUNTIME_DIRECTORY and its like."""
    found: dict[str, str] = {}
    for setting, variable in _DIRECTORIES.items():
        names = properties.texts(setting)
        if names:
            root = _user_root(variable, given, version) if scope.is_user else _SYSTEM_ROOTS[variable]
            found[variable] = ":".join(f"{root}/{name}" for name in names)
    return found


def _user_root(variable: str, given: Mapping[str, str], version: int) -> str:
    named, below_home, tail = _USER_ROOTS[variable]
    if version < _STATE_APART and named == "XDG_STATE_HOME":
        named, below_home, _ = _USER_ROOTS["CONFIGURATION_DIRECTORY"]
    return (given.get(named) or f"{given.get('HOME', '')}/{below_home}") + tail


def _of_unit(scope: Scope, unit: str, properties: Properties, given: Mapping[str, str]) -> dict[str, str]:
    """Return what a unit's own settings bring by the way."""
    found: dict[str, str] = {}
    if any(properties.value(name) for name in _CREDENTIALS):
        root = given.get("XDG_RUNTIME_DIR", "") if scope.is_user else "/run"
        found["CREDENTIALS_DIRECTORY"] = f"{root}/credentials/{unit}"
    if file := properties.text("PIDFile"):
        found["PIDFILE"] = file
    if search := properties.texts("ExecSearchPath"):
        found["PATH"] = ":".join(search)
    return found


async def _passed(
    scope: Scope, names: Sequence[str], given: Mapping[str, str]
) -> tuple[dict[str, str], frozenset[str]]:
    """Return what PassEnvironment= hands on and the names that can't be told.

    It comes from the environment of the manager's process, which only its owner can read, not from the one that
    `systemctl set-environment` changes.
    """
    if not names:
        return {}, _OF_A_START
    if scope.is_user:
        return {name: given[name] for name in names if name in given}, _OF_A_START
    try:
        content = await scope.host.read("/proc/1/environ")
    except FileProblem:
        return {}, _OF_A_START | set(names)
    own = assignments(tuple(content.decode(errors="surrogateescape").split("\0")))
    return {name: own[name] for name in names if name in own}, _OF_A_START
