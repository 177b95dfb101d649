"""The engine's own opinion on a command line: run, read, and told as a check."""

import difflib
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from specd.checks import Check
from specd.engines import masking
from specd.engines.asking import CantAsk, Question, ask, last_json_line
from specd.engines.log_rules import classify
from specd.engines.log_text import printable
from specd.engines.vllm.command import FLAGS
from specd.engines.vllm.failures import FAILURES
from specd.errors import PrivilegeRefused
from specd.hosts.host import Host

__all__ = ["ACCEPTS", "ask_vllm", "check_of", "used_flags"]

ACCEPTS = "engine.accepts"
_BESIDES = 8

_PROBE = (resources.files(__package__) / "accept.py.txt").read_text(encoding="utf-8")
# Why a refusal may be the question's fault and not the command line's.
_NOT_AN_OPINION = (
    (
        re.compile(r"OfflineModeIsEnabled|LocalEntryNotFoundError|outgoing traffic has been disabled|offline mode"),
        "the model is not in the host's cache, and the question is asked offline",
    ),
    (re.compile(r"Failed to infer device type"), "vLLM finds no device in the surroundings of the question"),
)
_FIELD = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
_CONFIG_CLASS = re.compile(r"^\w+Config: ")
_LITERAL = re.compile(r"Input should be (?P<allowed>[^\[\n]*)\[type=literal_error, input_value='(?P<given>[^']*)'")
_BAD_LITERAL = re.compile(r"invalid literal for (?:int|float)\(\)[^:]*: (?P<value>'[^']*')")


async def ask_vllm(host: Host, question: Question) -> list[Check]:
    """Ask the vLLM installed on the host whether it would accept exactly this command line, and what else changes."""
    is_module = "-m" in question.argv[question.found.program_at : question.found.server_at]
    about: dict[str, Any] = {
        "argv": list(question.server_words),
        "is_module": is_module,
        "before": list(question.before),
    }
    probe: list[str | None] = [None, "-c", _PROBE]
    secrets = masking.secrets_in(question.argv, question.env)
    try:
        answer = await ask(host, question, probe, about)
    except (CantAsk, PrivilegeRefused) as why:
        return [Check.unchecked(ACCEPTS, masking.mask(str(why), secrets))]
    told = last_json_line(answer)
    if told is None:
        ending = answer.error_text.strip().splitlines()[-1:] or [""]
        what = printable(f"no answer, status {answer.status}: {ending[0]}")
        return [Check.unchecked(ACCEPTS, masking.mask(what, secrets))]
    check = check_of(told, used_flags(question))
    fix = check.fix or _variable_named(str(told.get("error", "")), question.env)
    opinion = Check(check.name, check.status, masking.mask(check.evidence, secrets), fix)
    return [opinion, *besides(told)]


def besides(told: Mapping[str, Any]) -> list[Check]:
    """Tell which settings, that nobody named, the change would change as well; [] where nothing was compared."""
    found = told.get("besides")
    if not isinstance(found, list):
        return []
    name = "engine.besides"
    if not found:
        return [Check.passed(name, "no setting changes but those that were meant")]
    words = ", ".join(f"{setting} {before} becomes {after}" for setting, before, after in found[:_BESIDES])
    more = f" and {len(found) - _BESIDES} more" if len(found) > _BESIDES else ""
    fix = "part of what is measured comes from these; set them alike on both sides to see the change alone"
    return [Check.warning(name, printable(f"the engine also changes {words}{more}"), fix)]


def used_flags(question: Question) -> set[str]:
    """Return the names of the flags on the command line that is asked about."""
    return {use.flag.name for use in FLAGS.occurrences(question.server_words)}


def check_of(told: Mapping[str, Any], flags: set[str], engine: str = "vLLM") -> Check:
    """Turn the probe's answer into a check; a refusal names the flag where the engine's words allow it."""
    version = f"{engine} {told.get('version')}" if told.get("version") else engine
    if told.get("ok"):
        if told.get("stage") == "argparse":
            return Check.unchecked(ACCEPTS, f"{version} can parse the command line; its configuration was not tried")
        if changed := told.get("changed"):
            words = ", ".join(f"--{name.replace('_', '-')} {given} becomes {made}" for name, given, made in changed)
            fix = "give the value that it would run with, or change what forbids it"
            return Check.warning(ACCEPTS, printable(f"{_accepted(version, told)}; but {words}"), fix)
        return Check.passed(ACCEPTS, _accepted(version, told))
    error = str(told.get("error", ""))
    if told.get("stage") == "import":
        return Check.unchecked(ACCEPTS, printable(f"{version} could not be asked: {error[:300]}"))
    if told.get("touches_gpu"):
        return Check.unchecked(
            ACCEPTS, f"{version} parses the command line, but wanted to use the GPU to check its configuration"
        )
    for pattern, why in _NOT_AN_OPINION:
        if pattern.search(error):
            return Check.unchecked(ACCEPTS, printable(f"{version} could not say: {why}"))
    return _refused(version, told, error, flags)


def _accepted(version: str, told: Mapping[str, Any]) -> str:
    speculative = told.get("speculative")
    settings = json.dumps(speculative) if speculative else "off"
    length = told.get("max_model_len")
    return (
        f"{version} accepts it: speculation {settings}"
        + (f", max_model_len {length}" if length else "")
        + f" ({float(told.get('seconds', 0)):.1f} s)"
    )


def _refused(version: str, told: Mapping[str, Any], error: str, flags: set[str]) -> Check:
    usage = error.rpartition(": error: ")
    known = classify(FAILURES, f"x: error: {usage[2]}" if usage[1] else error, ())
    sentence = printable(known.sentence if known is not None else error.split("\n", 1)[0][:300])
    fix = known.hint if known is not None else ""
    if "--" not in sentence and (flag := _flag_named(error, flags)):
        sentence = f"--{flag}: {_CONFIG_CLASS.sub('', sentence)}"
    status = told.get("exit_code", 1)
    return Check.failed(ACCEPTS, f"{version} would end with status {status}: {sentence}", _nearest(error) or fix)


def _flag_named(error: str, flags: set[str]) -> str | None:
    """Return the flag on the command line that an error's words mean."""
    named = [word.replace("_", "-") for word in _FIELD.findall(error)]
    flag = next((name for name in named if name in flags), None)
    if flag is None and "speculative" in error.lower() and "speculative-config" in flags:
        return "speculative-config"
    return flag


def _variable_named(error: str, env: Mapping[str, str]) -> str:
    """Return the engine's environment variables that hold a value it could not read, as advice; "" for none."""
    bad = _BAD_LITERAL.search(error)
    if bad is None:
        return ""
    names = [name for name, value in env.items() if name.startswith("VLLM_") and repr(value) == bad["value"]]
    return f"see the environment variable {', '.join(sorted(names))}" if names else ""


def _nearest(error: str) -> str:
    """Return the flag or the value that was probably meant, as advice; "" if none is near."""
    unknown = re.search(r"unrecognized arguments: (--[\w.-]+)", error)
    if unknown and (near := FLAGS.nearest(unknown[1])):
        return f"did you mean --{near}?"
    literal = _LITERAL.search(error)
    if literal is None:
        return ""
    close = difflib.get_close_matches(literal["given"], re.findall(r"'([^']*)'", literal["allowed"]), n=1)
    return f"did you mean {close[0]}?" if close else ""
