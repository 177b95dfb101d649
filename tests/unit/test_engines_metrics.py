"""Counters from /metrics pages of three engines, several versions and several engine processes."""

from specd.engines import by_name
from specd.engines.engine import Counters
from specd.engines.vllm.log import VllmReader
from tests.corpus import VLLM as CORPUS

VLLM = by_name("vllm")


def test_a_real_page_with_speculation() -> None:
    assert VLLM.counters((CORPUS / "metrics-ngram.txt").read_text()) == Counters(
        process_start=1.79608823105e09,
        drafts=265.0,
        draft_tokens=1323.0,
        accepted_tokens=1200.0,
        accepted_by_position=(245.0, 245.0, 244.0, 233.0, 233.0),
        prompt_tokens=749.0,
        generation_tokens=2056.0,
        prefix_queries=749.0,
        prefix_hits=0.0,
        preemptions=0.0,
        requests_finished=25.0,
        running=0.0,
        waiting=0.0,
        kv_usage=0.0,
    )


def test_absent_is_not_zero_and_engines_add_up() -> None:
    page = "\n".join(
        [
            "# HELP vllm:generation_tokens_total x",
            'vllm:generation_tokens_total{engine="0",model_name="m"} 10.0',
            'vllm:generation_tokens_total{engine="1",model_name="m"} 5 1700000000000',
            'vllm:num_requests_running{engine="0",model_name="a b} c"} 2',
            "vllm:num_requests_waiting 3.5e0",
            "vllm:num_preemptions_total NaN",
            "garbage",
            "vllm:prompt_tokens_total{",
        ]
    )
    counters = VLLM.counters(page)
    assert (counters.generation_tokens, counters.running, counters.waiting) == (15.0, 2.0, 3.5)
    assert (counters.drafts, counters.preemptions, counters.prompt_tokens, counters.process_start) == (None,) * 4


def test_older_names() -> None:
    page = (
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\nvllm:gpu_prefix_cache_queries_total 8\n'
        "vllm:spec_decode_num_draft_tokens_total 40\n"
    )
    counters = VLLM.counters(page)
    assert (counters.kv_usage, counters.prefix_queries, counters.draft_tokens) == (0.25, 8.0, 40.0)


def test_other_engines() -> None:
    sglang = by_name("sglang").counters('sglang:num_running_reqs{tp="0"} 3\nsglang:generation_tokens_total 9\n')
    assert (sglang.running, sglang.generation_tokens, sglang.draft_tokens) == (3.0, 9.0, None)
    llama = by_name("llamacpp").counters(
        'llamacpp:requests_processing 1\nllamacpp:spec_decode_num_drafts_total 4\n'
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 2\n'
    )  # fmt: skip
    assert (llama.running, llama.drafts, llama.accepted_by_position) == (1.0, 4.0, (0.0, 2.0))


def test_speculation_seen_says_off_only_when_the_engine_counts_at_all() -> None:
    silent = VllmReader()
    assert VLLM.speculation_seen(silent, None) is None
    assert VLLM.speculation_seen(silent, Counters()) is None
    assert VLLM.speculation_seen(silent, Counters(generation_tokens=1.0)) == {}
    page = (CORPUS / "metrics-ngram.txt").read_text()
    assert VLLM.speculation_seen(silent, VLLM.counters(page)) == {"num_speculative_tokens": 5}
