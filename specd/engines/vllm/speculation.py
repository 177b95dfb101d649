"""The keys of vLLM's speculative configuration, by version, and what the engine reports of it while it runs."""

import difflib
from collections.abc import Mapping
from typing import Any

from specd.engines.engine import Counters

__all__ = ["KNOWN_KEYS", "REMOVED_KEYS", "nearest_key", "seen"]

_KEYS = (
    "method num_speculative_tokens model draft_tensor_parallel_size tensor_parallel_size quantization revision "
    "code_revision moe_backend attention_backend kv_cache_dtype draft_load_config max_model_len enforce_eager "
    "prompt_lookup_max prompt_lookup_min suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests "
    "suffix_decoding_max_spec_factor suffix_decoding_min_token_prob disable_padded_drafter_batch "
    "parallel_drafting num_speculative_tokens_per_batch_size rejection_sample_method "
    "synthetic_acceptance_rates synthetic_acceptance_length draft_sample_method use_heterogeneous_vocab "
    "use_local_argmax_reduction disable_eagle_block_drop disable_lookahead_block_hashes "
    "draft_lm_head_quantization index_share_for_mtp_iteration enable_adaptive_verification dspark_draft_topk "
    "xpress_topc fly_window_size fly_entropy_threshold fly_entropy_top_k "
)
KNOWN_KEYS = frozenset(_KEYS.split())
# Keys that older versions had and the last version that still took them.
REMOVED_KEYS = {
    "disable_by_batch_size": "0.14",
    "speculative_token_tree": "0.20",
    "disable_mqa_scorer": "0.8",
    "acceptance_method": "0.8",
    "disable_logprobs": "0.8",
    "posterior_threshold": "0.8",
    "posterior_alpha": "0.8",
}
# What people write from the older flags, and what the key is called now.
_OLD_NAMES = {
    "speculative_model": "model",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "num_tokens": "num_speculative_tokens",
    "speculative_method": "method",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
}


def nearest_key(key: str) -> str:
    """Return the valid key that an unknown one most likely means, "" if none is near."""
    plain = key.replace("-", "_")
    if plain in _OLD_NAMES:
        return _OLD_NAMES[plain]
    close = difflib.get_close_matches(plain, sorted(KNOWN_KEYS), n=1, cutoff=0.6)
    return close[0] if close else ""


def seen(facts: Mapping[str, Any], counters: Counters | None) -> Mapping[str, Any] | None:
    """Return the speculation settings that the running engine reports; {} for off, None when it does not tell.

    The log's configuration line is the engine's own word. Metrics tell on or off and the number of positions, since
    their families are absent while speculation is off, and all of them with --disable-log-stats.
    """
    if isinstance(facts.get("speculative"), dict):
        return dict(facts["speculative"])
    if counters is None or counters.generation_tokens is None:
        return None
    if counters.drafts is None and counters.draft_tokens is None:
        return {}
    positions = len(counters.accepted_by_position)
    return {"num_speculative_tokens": positions} if positions else None
