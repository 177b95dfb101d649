"""Proving an installed candidate: what systemd reports is compared with what was meant, element by element."""

import asyncio
import itertools
import json
import re
from collections.abc import Mapping, Sequence

from specd.checks import Check
from specd.engines.masking import is_secret_name, mask, secrets_in
from specd.errors import CommandTimedOut, FileProblem, UnitError
from specd.hosts.host import Completed
from specd.services.service import Candidate
from specd.services.systemd.bus import ExecCommand, Properties
from specd.services.systemd.directives import is_common
from specd.services.systemd.facts import command_of, require_service
from specd.services.systemd.scope import Scope
from specd.services.systemd.settings import settings_check
from specd.services.systemd.unitfile import marks_of, parse_unit
from specd.services.systemd.variables import read_environment

__all__ = ["argv_check", "diagnostics", "environment_check", "examine"]

_ENABLED = frozenset({"enabled", "enabled-runtime", "linked", "linked-runtime", "alias"})
# Prints lines "KEY value" about a program: whether it is a file one may execute, and its interpreter.
_PROGRAM_SCRIPT = """\
program=$1
case $program in */*) ;; *) program=$(PATH=$2 command -v -- "$program" || echo "$program") ;; esac
echo "path $program"
if [ ! -e "$program" ]; then
  dir=${program%/*}
  while [ -n "$dir" ] && [ ! -e "$dir" ]; do dir=${dir%/*}; done
  [ -z "$dir" ] || [ -x "$dir" ] || { echo hidden; exit 0; }
  echo missing; exit 0
fi
[ -d "$program" ] && { echo directory; exit 0; }
[ -x "$program" ] || { echo "mode $(stat -L -c %A "$program")"; exit 0; }
[ -r "$program" ] || exit 0
if [ "$(head -c 2 -- "$program" | tr -d '\\0')" = '#!' ]; then
  interpreter=$(head -n 1 -- "$program" | tr -d '\\0\\r' | cut -c 3- | awk '{print $1}')
  [ -x "$interpreter" ] || echo "interpreter $interpreter"
fi"""
_DIRECTORY_SCRIPT = """\
[ -d "$1" ] && { echo there; exit 0; }
dir=$1
while [ -n "$dir" ] && [ ! -e "$dir" ]; do dir=${dir%/*}; done
[ -n "$dir" ] && [ ! -x "$dir" ] && { echo hidden; exit 0; }
echo missing"""
_VERIFY_COPY_SCRIPT = """\
umask 077
name=$1; shift
dir=$(mktemp -d) || exit
cat >"$dir/$name"
systemd-analyze "$@" verify --man=no -- "$dir/$name"
status=$?
rm -rf -- "$dir"
exit $status"""
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def examine(scope: Scope, candidate: Candidate) -> list[Check]:
    """Prove an installed candidate; changes nothing."""
    properties = await scope.unit(candidate.name)
    try:
        require_service(properties, candidate.name, scope.host.name)
        command = command_of(properties, candidate.name)
    except UnitError as error:
        basic = await asyncio.gather(_bytes(scope, candidate), _analyze(scope, candidate))
        return [*basic, Check.failed("unit.reload", error.what, error.next_step)]
    found = await asyncio.gather(
        _bytes(scope, candidate),
        _analyze(scope, candidate),
        _executable(scope, properties, command),
        _user(scope, properties),
        _working_directory(scope, properties),
    )
    return [
        *found[:2],
        _reload(properties, candidate),
        *await _effective(scope, properties, candidate, command),
        *found[2:],
        _enabled(properties),
        _restart(properties),
        await _settings(scope, properties, candidate),
    ]


async def _settings(scope: Scope, properties: Properties, candidate: Candidate) -> Check:
    text = candidate.content.decode()
    name = marks_of(text).get("Baseline", "")
    baseline = await scope.unit(name)
    if baseline.text("LoadState") != "loaded":
        return Check.unchecked("unit.settings", f"{name} is {baseline.text('LoadState')}")
    drop_ins = properties.texts("DropInPaths")
    return settings_check(filter(is_common, parse_unit(text)), baseline, properties, drop_ins)


async def _bytes(scope: Scope, candidate: Candidate) -> Check:
    name = "unit.bytes"
    for path, content in {candidate.path: candidate.content, **candidate.side_files}.items():
        try:
            there = await scope.read(path)
        except FileProblem as error:
            return Check.failed(name, f"{path}: {error.what}", "write it again")
        if there != content:
            place = next(
                (i for i, (a, b) in enumerate(zip(there, content, strict=False)) if a != b),
                min(len(there), len(content)),
            )
            return Check.failed(
                name, f"{path} has {len(there)} bytes, {len(content)} were meant; they differ from byte {place} on"
            )
    return Check.passed(name, f"{candidate.path}: {len(candidate.content)} bytes read back equal")


def _reload(properties: Properties, candidate: Candidate) -> Check:
    name = "unit.reload"
    if properties.text("FragmentPath") != candidate.path:
        return Check.failed(name, f"systemd reads {properties.text('FragmentPath')}, not {candidate.path}")
    foreign = [path for path in properties.texts("DropInPaths") if "/service.d/" not in path]
    if foreign:
        return Check.failed(name, f"the drop-in {foreign[0]} changes the candidate", "remove it")
    return Check.passed(name, "systemd has read the file as it is")


async def _effective(scope: Scope, properties: Properties, candidate: Candidate, command: ExecCommand) -> list[Check]:
    try:
        environment = await read_environment(scope, candidate.name, properties)
        effective = environment.words(command)
    except (UnitError, FileProblem) as error:
        words = Check.failed("unit.environment-files", error.what, error.next_step)
        return [
            words,
            Check.unchecked("unit.argv", "needs the environment"),
            Check.unchecked("unit.environment", error.what),
        ]
    secrets = secrets_in([*candidate.argv, *effective], {**candidate.environment, **environment.own})
    evidence = f"{len(environment.files)} read" if environment.files else "none"
    if environment.missing:
        evidence += f"; optional and missing: {', '.join(environment.missing)}"
    return [
        argv_check(candidate.argv, effective, secrets),
        environment_check(candidate.environment, environment.own),
        Check.passed("unit.environment-files", evidence),
    ]


def argv_check(intended: Sequence[str], effective: Sequence[str], secrets: Sequence[str] = ()) -> Check:
    """Compare two command lines; the evidence names the first element that differs, secrets masked."""
    name = "unit.argv"
    for place, (meant, got) in enumerate(itertools.zip_longest(intended, effective)):
        if meant == got:
            continue
        shown = [repr(mask(word, secrets)) if word is not None else "nothing" for word in (meant, got)]
        before = f" after {mask(intended[place - 1], secrets)!r}" if place and place <= len(intended) else ""
        words = f"word {place}{before}: intended {shown[0]}, systemd would give {shown[1]}"
        return Check.failed(name, words, "report this unit: the text did not come through systemd as meant")
    documents = 0
    for word, got in zip(intended, effective, strict=True):
        value = word.partition("=")[2] if word.startswith("--") and "=" in word else word
        if value[:1] in {"{", "["} and _is_json(value):
            documents += 1
            if json.loads(value) != json.loads(got[len(word) - len(value) :]):
                return Check.failed(name, f"the JSON of {mask(word, secrets)!r} came through changed")
    tail = f", {documents} JSON values deep-equal" if documents else ""
    return Check.passed(name, f"{len(intended)} words equal{tail}")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def environment_check(intended: Mapping[str, str], effective: Mapping[str, str]) -> Check:
    """Compare what the unit sets in the environment; values of secret names are not shown."""
    name = "unit.environment"
    for key in sorted(intended.keys() | effective.keys()):
        meant, got = intended.get(key), effective.get(key)
        if meant == got:
            continue
        hidden = is_secret_name(key)
        shown = ["nothing" if value is None else "***" if hidden else repr(value) for value in (meant, got)]
        return Check.failed(name, f"{key}: intended {shown[0]}, systemd would give {shown[1]}")
    return Check.passed(name, f"{len(intended)} variables equal")


async def _analyze(scope: Scope, candidate: Candidate) -> Check:
    name = "unit.analyze"
    if await scope.host.tool("systemd-analyze") is None:
        return Check.unchecked(name, "the host has no systemd-analyze")
    try:
        mine, status = await _verify(scope, candidate)
        baseline = marks_of(candidate.content.decode()).get("Baseline", "")
        inherited = diagnostics((await _run_verify(scope, baseline)).error_text, baseline) if mine and baseline else []
    except CommandTimedOut as error:
        return Check.unchecked(name, error.what)
    if not mine and status:
        return Check.warning(
            name, f"systemd-analyze verify ended with status {status} but says nothing about this unit"
        )
    if not mine:
        return Check.passed(name, "systemd-analyze verify has nothing to say about it")
    own = [line for line in mine if line not in inherited]
    if own:
        return Check.failed(name, "; ".join(own[:5]), "see the line in the candidate's unit")
    return Check.warning(
        name, f"the same as for {baseline}: {'; '.join(mine[:3])}", "mend the baseline's unit when it suits"
    )


async def _verify(scope: Scope, candidate: Candidate) -> tuple[list[str], int]:
    done = await _run_verify(scope, candidate.path)
    if done.status and "Permission denied" in done.error_text:
        # A closed file (it may hold a secret): the same bytes are judged from a directory of the connecting user.
        argv = ["sh", "-c", _VERIFY_COPY_SCRIPT, "specd", candidate.name, *scope.flags]
        environment = await scope.environment()
        done = await scope.host.run(argv, stdin=candidate.content, check=False, timeout_s=60.0, env=environment)
    return diagnostics(done.error_text, candidate.name), done.status


async def _run_verify(scope: Scope, unit: str) -> Completed:
    argv = ["systemd-analyze", *scope.flags, "verify", "--man=no", "--", unit]
    return await scope.host.run(argv, check=False, timeout_s=60.0, env=await scope.environment())


def diagnostics(text: str, unit: str) -> list[str]:
    """Return what systemd-analyze says about one unit, without places and names, so that two units can be compared."""
    names = [re.escape(name) for name in {unit, re.sub(r"@[^.]*", "@", unit)}]
    about = re.compile(rf"(?:^|[\s/])(?:{'|'.join(names)})(?=[\s:.,]|$)")
    found = []
    for line in text.splitlines():
        if about.search(line):
            bare = re.sub(r"^(?:\S+:\d+|\S+):\s+", "", line)
            found.append(re.sub(rf"\S*(?:{'|'.join(names)})", "the unit", bare))
    return found


async def _executable(scope: Scope, properties: Properties, command: ExecCommand) -> Check:
    name = "unit.executable"
    if properties.text("RootDirectory") or properties.text("RootImage"):
        return Check.unchecked(name, f"{command.path} lies in the unit's own root")
    search = ":".join(properties.texts("ExecSearchPath")) or _DEFAULT_PATH
    done = await scope.script(_PROGRAM_SCRIPT, command.path, search)
    said = dict((line.partition(" ")[0], line.partition(" ")[2]) for line in done.text.splitlines())
    path = said.pop("path", command.path)
    if "hidden" in said:
        return Check.unchecked(name, f"{path} can't be seen by the connecting user")
    if "missing" in said:
        return Check.failed(name, f"{path} does not exist", "install it, or correct the path")
    if "directory" in said:
        return Check.failed(name, f"{path} is a directory")
    if "mode" in said:
        return Check.failed(name, f"{path} is not executable ({said['mode']})", f"chmod +x {path}")
    if "interpreter" in said:
        return Check.failed(name, f"{path} wants the interpreter {said['interpreter'] or '(none)'}, which can't be run")
    return Check.passed(name, path)


async def _user(scope: Scope, properties: Properties) -> Check:
    name = "unit.user"
    if properties.flag("DynamicUser"):
        return Check.passed(name, "a dynamic user")
    user, group = properties.text("User"), properties.text("Group")
    for database, key in (("passwd", user), ("group", group)):
        if key and (await scope.host.run(["getent", database, "--", key], check=False)).status != 0:
            kind = "user" if database == "passwd" else "group"
            return Check.failed(name, f"there is no {kind} {key} on the host", f"create it, or correct {kind.title()}=")
    return Check.passed(name, user or ("the user itself" if scope.is_user else "root"))


async def _working_directory(scope: Scope, properties: Properties) -> Check:
    name = "unit.working-directory"
    path = properties.text("WorkingDirectory")
    if not path or path.startswith("!") or path == "~":
        return Check.passed(name, path or "/")
    if properties.text("RootDirectory") or properties.text("RootImage"):
        return Check.unchecked(name, f"{path} lies in the unit's own root")
    said = (await scope.script(_DIRECTORY_SCRIPT, path)).text.strip()
    if said == "hidden":
        return Check.unchecked(name, f"{path} can't be seen by the connecting user")
    if said != "there":
        return Check.failed(name, f"{path} is no directory on the host", "create it, or correct WorkingDirectory=")
    return Check.passed(name, path)


def _enabled(properties: Properties) -> Check:
    name = "unit.enabled"
    state = properties.text("UnitFileState")
    wanted = [unit for key in ("WantedBy", "RequiredBy", "UpheldBy") for unit in properties.texts(key)]
    if state in _ENABLED or wanted:
        return Check.failed(name, f"it is {state}, wanted by {' '.join(wanted) or 'nothing'}", "disable it")
    return Check.passed(name, f"not enabled ({state or 'no state'})")


def _restart(properties: Properties) -> Check:
    name = "unit.restart"
    wanted = {"Restart": "no", "KillMode": "mixed"}
    for key, value in wanted.items():
        if properties.text(key) != value:
            paths = ", ".join(properties.texts("DropInPaths")) or "a setting"
            return Check.failed(name, f"{key} is {properties.text(key)}, not {value}, by {paths}")
    stop = properties.number("TimeoutStopUSec") / 1e6
    return Check.passed(name, f"Restart=no, KillMode=mixed, killed {stop:g} s after a stop is asked for")
