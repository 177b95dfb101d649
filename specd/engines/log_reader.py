"""Reads one invocation's log by an engine's rules: stages, facts, and the root cause if it ends badly."""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specd.engines.engine import Failure, Observation, Stage
from specd.engines.log_rules import LogRules, StageRule, classify, observation
from specd.engines.log_text import Line, clean_lines, printable, split_message
from specd.engines.tracebacks import POINTER, Tracebacks, Trouble

__all__ = ["RuleReader"]

_TAIL_LINES = 40
_LINES_SHOWN = 24
_OWN_WORDS = 80
_MEMORY_STAGES = {
    Stage.WEIGHTS: (
        "while the weights were loaded",
        "they do not fit: more GPUs (--tensor-parallel-size), a quantized checkpoint, or a smaller draft",
    ),
    Stage.COMPILE: (
        "while the engine compiled and measured what it needs",
        "lower --max-num-batched-tokens or --max-model-len; a draft model needs room of its own",
    ),
    Stage.CAPTURE: (
        "while CUDA graphs were captured",
        "lower --gpu-memory-utilization or --max-num-seqs, or capture fewer sizes (--compilation-config)",
    ),
    Stage.SERVER: ("while it served", "lower --gpu-memory-utilization or --max-num-seqs"),
}
_WEIGHTS_FRAME = re.compile(r", in (?:load_weights|weight_loader|\w*_weight_loader)\b")
_REFUSAL = re.compile(r"(?:ValueError|KeyError|NotImplementedError|AssertionError): \S")
_STAGE_PLACE = {stage: place for place, stage in enumerate(Stage.ORDER)}


@dataclass(slots=True)
class _Bars:
    """Progress bars that add up (one for each kind of graph), and the total announced for all of them."""

    shown: dict[str, tuple[float, float]]
    announced: float = 0

    def sum(self) -> tuple[float, float]:
        done = sum(done for done, _ in self.shown.values())
        return done, max(self.announced, sum(total for _, total in self.shown.values()))


class RuleReader:
    """A LogReader for any engine whose rules are data; holds some hundred lines at most, whatever the log's length."""

    def __init__(self, rules: LogRules) -> None:
        self._rules = rules
        self._facts: dict[str, Any] = {}
        self._stage = ""
        self._bars = _Bars({})
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._tracebacks = Tracebacks(rules, self._tail)
        self._failure_at_version: tuple[int, Failure | None] = (-1, None)

    def feed(self, text: str) -> list[Observation]:
        """Take one journal record and say what it shows."""
        shown: list[Observation] = []
        for raw in clean_lines(text):
            self._tail.append(raw)
            for line in split_message(self._rules.parse(raw)):
                if self._tracebacks.take(line, raw):
                    continue
                seen = self._observe(line)
                if seen is not None:
                    shown.append(seen)
        return shown

    def facts(self) -> Mapping[str, Any]:
        """Return what the log has said of itself so far."""
        return self._facts

    def failure(self) -> Failure | None:
        """Return the root cause seen so far, or None while nothing terminal was seen."""
        version = self._tracebacks.version
        if self._failure_at_version[0] != version:
            self._failure_at_version = (version, self._explain())
        return self._failure_at_version[1]

    def last_words(self) -> Failure | None:
        """Return the failure that an uncaught exception at the log's end stands for; trust it only after a bad exit."""
        trouble = self._tracebacks.last_words()
        return None if trouble is None else self._classified(trouble) or _unknown(trouble)

    @property
    def stage(self) -> str:
        """The furthest stage reached, "" before any."""
        return self._stage

    @property
    def is_stopping(self) -> bool:
        """True once the log announces a stop that somebody asked for (a signal), before anything went wrong."""
        return self._tracebacks.is_stopping

    def last_lines(self, count: int = 20) -> tuple[str, ...]:
        """Return the last lines read, without control characters."""
        return tuple(printable(line) for line in list(self._tail)[-count:])

    def _explain(self) -> Failure | None:
        troubles = self._tracebacks.troubles()
        if not troubles:
            return None
        # Only the root cause is classified: what the others say may be its consequence. Where every error only points
        # at another, nobody told the cause, and the first that is known tells at least what happened.
        telling = troubles if troubles[0].rank == POINTER else troubles[:1]
        known = (self._classified(trouble) for trouble in telling)
        found = next((failure for failure in known if failure is not None), None) or _unknown(troubles[0])
        return _at_stage(found, self._stage) if found.kind == "gpu-memory" and not found.transient else found

    def _classified(self, trouble: Trouble) -> Failure | None:
        for text in trouble.texts:
            known = classify(self._rules.failures, printable(text), _shown(trouble))
            if known is not None:
                return known
        return self._refused(trouble) or _weights_refused(trouble, is_draft=bool(self._facts.get("drafter")))

    def _refused(self, trouble: Trouble) -> Failure | None:
        """Return the failure for an exception that the code that judges settings raised."""
        frames = [line for line in trouble.lines if 'File "' in line]
        frame = self._rules.refusing_frame
        if frame is None or not frames or not frame.search(frames[-1]) or not _REFUSAL.match(trouble.summary):
            return None
        why = printable(trouble.summary).partition(": ")[2]
        return Failure(kind="bad-value", sentence=f"the engine refuses a setting: {why}"[:300], lines=_shown(trouble))

    def _observe(self, line: Line) -> Observation | None:
        text = line.text
        if text.startswith("[") and not text.startswith("[shutdown]"):
            # Newer versions put the part of the model in front: "[backbone] Initial profiling ...".
            _, _, text = text.partition("] ")
        head = text.partition(" ")[0]
        for rule in self._rules.by_head.get(head, ()):
            found = rule.pattern.match(text)
            if found is not None:
                return self._told(rule, observation(rule, found), found.group(0))
        for substring, rule in self._rules.anywhere:
            # Further in, a line quotes what somebody else said: a prompt, a path, another line.
            if substring in text[:_OWN_WORDS]:
                found = rule.pattern.search(text)
                if found is not None:
                    return self._told(rule, observation(rule, found), found.group(0))
        return None

    def _told(self, rule: StageRule, seen: Observation, matched: str) -> Observation | None:
        """Keep the facts, add up bars, and never let a late process take the stage back."""
        if seen.facts:
            self._facts.update(seen.facts)
            if "graphs_by_mode" in seen.facts:
                self._announce_graphs(str(seen.facts["graphs_by_mode"]))
        if rule.bar and seen.total is not None:
            self._bars.shown[matched.partition(":")[0]] = (seen.done or 0.0, seen.total)
            done, total = self._bars.sum()
            seen = replace(seen, done=done, total=total)
        stage = seen.stage or (self._stage if seen.finished else "")
        if stage and _STAGE_PLACE[stage] < _STAGE_PLACE.get(self._stage, 0):
            return Observation(facts=seen.facts) if seen.facts else None
        if stage:
            self._stage = stage
        return replace(seen, stage=stage)

    def _announce_graphs(self, modes: str) -> None:
        """Sum `PIECEWISE=41 (largest=384), FULL=25 (largest=192)`: how many graphs will be captured."""
        counts = [part.split("=")[1].split(" ")[0] for part in modes.split(", ") if "=" in part]
        self._bars.announced = float(sum(int(count) for count in counts if count.isdigit()))
        self._facts["graphs_total"] = int(self._bars.announced)


def _weights_refused(trouble: Trouble, *, is_draft: bool) -> Failure | None:
    """Return the failure for any error on the way from a checkpoint's tensors into the model's."""
    if not any(_WEIGHTS_FRAME.search(line) for line in trouble.lines):
        return None
    which = "draft" if is_draft else "model"
    return Failure(
        kind="bad-value",
        sentence=f"the {which}'s weights are not what this version makes of its architecture: "
        + printable(trouble.summary)[:200],
        lines=_shown(trouble),
        hint="is it a draft for this model, and of a kind that this version can run?"
        if is_draft
        else "can this version run this model, quantized as it is?",
    )


def _at_stage(failure: Failure, stage: str) -> Failure:
    """Say for what the GPU's memory was too small; what helps depends on that."""
    when, hint = _MEMORY_STAGES.get(stage, ("", ""))
    if not when or when in failure.sentence:
        return failure
    return replace(failure, sentence=f"{when}: {failure.sentence}", hint=hint or failure.hint)


def _unknown(trouble: Trouble) -> Failure:
    return Failure(kind="unknown", sentence=printable(trouble.summary)[:300], lines=_shown(trouble))


def _shown(trouble: Trouble) -> tuple[str, ...]:
    return tuple(printable(line) for line in trouble.lines[-_LINES_SHOWN:])
