"""Does a draft fit its target: vocabulary, tokenizer, length, architecture; read from the files of both."""

import asyncio
from collections.abc import Mapping
from typing import Any

from specd.checking.trial import Plan
from specd.checks import Check
from specd.engines.model_files import read_config, resolve_path
from specd.errors import HostError, HostUnreachable

__all__ = ["draft_checks"]

_NAME = "draft.fit"
_EAGLES = frozenset({"eagle", "eagle3"})
_NO_MODEL = frozenset({"ngram", "ngram_gpu", "suffix", "[ngram]"})
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_HASHES = 'cd -- "$1" && shift && for f; do [ -e "$f" ] && sha256sum -- "$f"; done; :'
# The keys under which a checkpoint tells how many layers of multi-token prediction it has.
_MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "n_predict")


async def draft_checks(plan: Plan) -> list[Check]:
    """Check the draft of a speculative configuration; nothing where none is asked for."""
    asked = plan.server.engine.speculation_asked(plan.command)
    method = str(asked.get("method") or "")
    if not asked or method in _NO_MODEL or plan.command.in_container:
        return []
    target = resolve_path(plan.command.model, plan.facts.working_directory)
    if target is None:
        return [Check.unchecked(_NAME, f"{plan.command.model} is a name on a model hub: its configuration is not read")]
    try:
        return await _fit(plan, method, target, asked)
    except HostUnreachable:
        raise
    except HostError as error:
        return [Check.unchecked(_NAME, f"the configurations could not be read: {error}")]


async def _fit(plan: Plan, method: str, target: str, asked: Mapping[str, Any]) -> list[Check]:
    draft = asked.get("model")
    draft_path = resolve_path(str(draft), plan.facts.working_directory) if draft else None
    of_target = _text_part(await read_config(plan.host, target))
    if not draft or draft_path == target:
        return [_own_layers(method, of_target)]
    if draft_path is None:
        return [Check.unchecked(_NAME, f"{draft} is a name on a model hub: its configuration is not read")]
    whole = await read_config(plan.host, draft_path)
    of_draft = _text_part(whole)
    if not of_target or not of_draft:
        return [Check.unchecked(_NAME, f"no configuration was found in {target if not of_target else draft_path}")]
    is_eagle = method in _EAGLES or any("eagle" in str(name).lower() for name in whole.get("architectures") or ())
    checks = [_sizes(plan, of_target, of_draft, is_eagle=is_eagle)]
    if not is_eagle:
        checks.append(await _tokenizer(plan, target, draft_path))
    return checks


def _own_layers(method: str, of_target: Mapping[str, Any]) -> Check:
    layers = next((of_target[key] for key in _MTP_LAYERS if of_target.get(key)), 0)
    if "mtp" not in method and method not in {"", "deepseek_mtp"}:
        return Check.unchecked(_NAME, f"method {method} names no draft model")
    if not of_target:
        return Check.unchecked(_NAME, "the target's configuration was not found")
    if not layers:
        words = "the checkpoint's configuration names no layers for multi-token prediction"
        return Check.failed(_NAME, words, "use a checkpoint that has them, or another method")
    return Check.passed(
        _NAME, f"the checkpoint brings {layers} layer{'s' if layers != 1 else ''} for multi-token prediction"
    )


def _sizes(plan: Plan, target: Mapping[str, Any], draft: Mapping[str, Any], *, is_eagle: bool) -> Check:
    vocabulary = (target.get("vocab_size"), draft.get("vocab_size"))
    if None not in vocabulary and vocabulary[0] != vocabulary[1] and not (is_eagle and draft.get("draft_vocab_size")):
        words = f"the target has a vocabulary of {vocabulary[0]} tokens, the draft one of {vocabulary[1]}"
        return Check.failed(_NAME, words, "use a draft that was made for this target")
    if is_eagle and (hidden := _hidden(target, draft)):
        return Check.failed(_NAME, hidden, "use a head that was trained for this target")
    longest, asked = draft.get("max_position_embeddings"), plan.flag("max-model-len", 0)
    wanted = int(asked) or int(target.get("max_position_embeddings") or 0)
    if isinstance(longest, int) and wanted > longest and not draft.get("rope_scaling"):
        words = f"the draft was made for {longest} tokens, the target runs with {wanted}; it drafts badly beyond that"
        return Check.warning(_NAME, words, f"lower max-model-len to {longest}, or use a longer draft")
    return Check.passed(_NAME, f"vocabulary {vocabulary[1] or 'not told'}, length {longest or 'not told'}")


def _hidden(target: Mapping[str, Any], draft: Mapping[str, Any]) -> str:
    theirs = draft.get("target_hidden_size") or draft.get("hidden_size")
    if theirs and target.get("hidden_size") and theirs != target["hidden_size"] and not draft.get("fc_input_size"):
        return f"the head was trained on states of {theirs}, the target's are {target['hidden_size']} wide"
    return ""


async def _tokenizer(plan: Plan, target: str, draft: str) -> Check:
    """Compare the tokenizers' files; two that differ may still give the same tokens."""
    name = "draft.tokenizer"
    both = await asyncio.gather(
        *(plan.host.run(["sh", "-c", _HASHES, "sh", path, *_TOKENIZERS], check=False) for path in (target, draft))
    )
    ours, theirs = ({line.split()[-1]: line.split()[0] for line in done.text.splitlines()} for done in both)
    shared = [file for file in _TOKENIZERS if file in ours and file in theirs]
    if not shared:
        return Check.unchecked(name, "no tokenizer file is in both directories")
    if different := [file for file in shared if ours[file] != theirs[file]]:
        words = f"{different[0]} of the draft is another one than the target's"
        return Check.warning(name, words, "a draft with other tokens is accepted as good as never")
    return Check.passed(name, f"{shared[0]} is the same in both")


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a configuration."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config
