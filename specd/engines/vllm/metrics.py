"""The names of vLLM's series, newest first."""

from specd.engines.exposition import Series

__all__ = ["VLLM_SERIES"]

VLLM_SERIES = Series(
    {
        "process_start": ("process_start_time_seconds",),
        "drafts": ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts"),
        "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens"),
        "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens"),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "prefix_queries": (
            "vllm:prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries",
        ),
        "prefix_hits": (
            "vllm:prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits",
        ),
        "preemptions": ("vllm:num_preemptions_total",),
        "requests_finished": ("vllm:request_success_total",),
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    },
    by_position=(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
    ),
)
