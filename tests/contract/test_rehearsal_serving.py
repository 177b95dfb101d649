"""The rehearsal engine as a server: endpoints, streams, speed."""

import concurrent.futures
import http.client
import itertools
import json
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.rehearsal import Engine, started, text_of, wait_until

NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4})
MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
USAGE = {"stream_options": {"include_usage": True}}
RUNNING = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One baseline engine for tests that only ask."""
    with started(tmp_path_factory.mktemp("plain"), "--served-model-name", "kimi", "alias") as engine:
        yield engine.wait_ready()


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine with n-gram speculation."""
    with started(tmp_path_factory.mktemp("drafting"), "-sc", NGRAM) as engine:
        yield engine.wait_ready()


def test_small_endpoints(plain: Engine) -> None:
    assert plain.request("/health") == (200, b"")
    assert plain.request("/ping") == (200, b"")
    assert plain.request("/ping", b"") == (200, b"")
    assert plain.ask("/version") == {"version": "0.32.0+rehearsal"}
    models = plain.ask("/v1/models")["data"]
    assert [model["id"] for model in models] == ["kimi", "alias"]
    assert {(model["root"], model["max_model_len"], model["owned_by"]) for model in models} == {
        ("acme/moe", 32_768, "vllm")
    }


def test_unknown_paths_and_methods(plain: Engine) -> None:
    assert plain.request("/v1/nope")[0] == 404
    assert plain.request("/v1/chat/completions")[0] == 405
    assert plain.request("/health", b"")[0] == 405


def test_chat_stream_has_vllms_shape(plain: Engine) -> None:
    events = [event for _, event in plain.stream({"max_tokens": 8, **USAGE})]
    assert events[-1] == "[DONE]"
    first, *chunks, usage = events[:-1]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(chunks) == 8
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 7 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 8
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 8
    assert not any("usage" in chunk for chunk in (first, *chunks))
    assert len({event["id"] for event in events[:-1]}) == 1


def test_running_usage_counts_every_chunk(drafting: Engine) -> None:
    events = [event for _, event in drafting.stream({"max_tokens": 120, "ignore_eos": True, **RUNNING})]
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts[0] == 0
    assert counts[-2:] == [120, 120]
    steps = [later - earlier for earlier, later in itertools.pairwise(counts[:-1])]
    assert set(steps) <= {1, 2, 3, 4, 5, 6}
    assert max(steps) > 1


def test_stream_and_body_tell_the_same(plain: Engine) -> None:
    body = {"model": "kimi", "messages": MESSAGES, "max_tokens": 30}
    answer = plain.ask("/v1/chat/completions", body)
    streamed = text_of(plain.stream({**body}))
    assert answer["choices"][0]["message"]["content"] == streamed
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["completion_tokens"] == 30


def test_answers_repeat_and_differ_by_prompt_and_seed(plain: Engine) -> None:
    def say(**body: Any) -> str:
        answer = plain.ask("/v1/completions", {"prompt": "A story", "max_tokens": 20, **body})
        return str(answer["choices"][0]["text"])

    assert say() == say()
    assert say() != say(prompt="Another story")
    assert say(seed=1) != say(seed=2)
    assert say(seed=1, temperature=0) == say(seed=2, temperature=0)


def test_plain_completion_stream(plain: Engine) -> None:
    body = {"prompt": "Once", "max_tokens": 5, **USAGE}
    events = [event for _, event in plain.stream(body, "/v1/completions")]
    assert [event["object"] for event in events[:-1]] == ["text_completion"] * 6
    assert all(event["choices"][0]["text"] for event in events[:5])


def test_natural_end_and_ignore_eos(plain: Engine) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1000}
    natural = plain.ask("/v1/chat/completions", body)
    assert natural["choices"][0]["finish_reason"] == "stop"
    assert 180 <= natural["usage"]["completion_tokens"] <= 420
    forced = plain.ask("/v1/chat/completions", {**body, "max_tokens": 450, "ignore_eos": True})
    assert (forced["choices"][0]["finish_reason"], forced["usage"]["completion_tokens"]) == ("length", 450)


@pytest.mark.parametrize("keeps", [False, True])
def test_stop_string(plain: Engine, keeps: bool) -> None:
    body = {"prompt": "Once", "max_tokens": 60, "stop": [". "], "include_stop_str_in_output": keeps}
    whole = plain.ask("/v1/completions", {"prompt": "Once", "max_tokens": 60})["choices"][0]["text"]
    choice = plain.ask("/v1/completions", body)["choices"][0]
    assert choice["text"] == whole[: whole.index(". ") + (2 if keeps else 0)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ". ")
    streamed = [event for _, event in plain.stream(body, "/v1/completions")][:-1]
    assert "".join(event["choices"][0]["text"] for event in streamed) == choice["text"]
    wait_until(lambda: plain.metric("vllm:num_requests_running") == 0, 5)


def test_token_ids_round_trip(plain: Engine) -> None:
    body = {"prompt": "Once", "max_tokens": 9, "return_token_ids": True}
    answer = plain.ask("/v1/completions", body)
    choice = answer["choices"][0]
    assert plain.ask("/detokenize", {"tokens": choice["token_ids"]})["prompt"] == choice["text"]
    assert plain.ask("/tokenize", {"prompt": choice["text"]})["tokens"] == choice["token_ids"]
    assert plain.ask("/v1/completions", {**body, "prompt": answer["prompt_token_ids"]})["choices"] == answer["choices"]


def test_tokenize_counts_as_usage_does(plain: Engine) -> None:
    counted = plain.ask("/tokenize", {"model": "kimi", "messages": MESSAGES, "return_token_strs": True})
    answer = plain.ask("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1})
    assert counted["count"] == len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
    assert "Tell me about the sea." in "".join(counted["token_strs"])
    assert counted["max_model_len"] == 32_768


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "json_invalid"),
        (b"[1]", 400, "valid dictionary"),
        (b"[" * 100_000, 400, "json_invalid"),
        (b"\xff", 400, "json_invalid"),
        ({"model": "nope", "messages": MESSAGES}, 404, "The model `nope` does not exist."),
        ({"messages": []}, 400, "messages"),
        ({"messages": MESSAGES, "max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"messages": MESSAGES, "max_tokens": "many"}, 400, "valid integer"),
        ({"messages": MESSAGES, "max_tokens": 32_768}, 400, "maximum context length is 32768 tokens"),
        ({"messages": [{"role": "user", "content": "a. " * 20_000}]}, 400, "at least 32769 input tokens"),
        ({"messages": MESSAGES, "n": 2}, 400, "n must be 1"),
        ({"messages": MESSAGES, "stream_options": {}}, 400, "Stream options can only be defined"),
        ({"messages": MESSAGES, "temperature": 3}, 400, "temperature must be in [0, 2]"),
    ],
)
def test_refusals_have_openais_form(plain: Engine, body: Any, status: int, words: str) -> None:
    got, answer = plain.request("/v1/chat/completions", body)
    error = json.loads(answer)["error"]
    assert (got, error["code"]) == (status, status)
    assert words in error["message"]
    assert {"message", "type", "param", "code"} == set(error)


def test_api_key_guards_v1_only(tmp_path: Path) -> None:
    with started(tmp_path, "--api-key", "s3cret-key", "other") as engine:
        engine.wait_ready()
        assert engine.request("/v1/models")[0] == 401
        assert engine.request("/v1/models", headers={"Authorization": "Bearer wrong"})[0] == 401
        for key in ("s3cret-key", "other"):
            assert engine.request("/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200
        assert engine.request("/health")[0] == engine.request("/metrics")[0] == 200
        assert "s3cret" not in engine.log() + engine.errors()
        assert "'api_key': ['***', '***']" in engine.log()


def test_api_key_from_the_environment(tmp_path: Path) -> None:
    with started(tmp_path, env={"VLLM_API_KEY": "s3cret"}) as engine:
        assert engine.wait_ready().request("/v1/models")[0] == 401


def test_keep_alive_and_pipelining(plain: Engine) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=5)
    body = json.dumps({"prompt": "a", "max_tokens": 2, "stream": True})
    for _ in range(3):
        connection.request("POST", "/v1/completions", body)
        assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b""
    connection.close()
    with socket.create_connection(("127.0.0.1", plain.port)) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n\r\nGET /version HTTP/1.1\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    assert answer.count(b"HTTP/1.1 200 OK") == 2


def test_chunked_request_and_nonsense(plain: Engine) -> None:
    body = b'{"prompt":"a","max_tokens":1}'
    with socket.create_connection(("127.0.0.1", plain.port)) as sock:
        head = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        sock.sendall(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 OK")
    for nonsense in (
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nbroken\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", plain.port)) as sock:
            sock.sendall(nonsense)
            assert sock.recv(4096).startswith(b"HTTP/1.1 400 Bad Request")


def test_a_client_that_hangs_up_frees_its_place(plain: Engine) -> None:
    aborted = plain.metric("vllm:request_success_total", finished_reason="abort")
    assert aborted is not None
    connection = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=5)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 20_000, "ignore_eos": True}))
    wait_until(lambda: plain.metric("vllm:num_requests_running") == 1, 5)
    connection.close()
    wait_until(lambda: plain.metric("vllm:num_requests_running") == 0, 5)
    assert plain.metric("vllm:request_success_total", finished_reason="abort") == aborted + 1


def test_metrics_without_speculation_have_no_such_families(plain: Engine) -> None:
    status, text = plain.request("/metrics")
    assert status == 200
    assert b"spec_decode" not in text
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
        assert f'vllm:{name}_bucket{{engine="0",model_name="kimi",le="+Inf"}}'.encode() in text


def test_metrics_agree_with_usage(drafting: Engine) -> None:
    names = ("generation_tokens", "spec_decode_num_drafts", "spec_decode_num_draft_tokens")
    names = (*names, "spec_decode_num_accepted_tokens", "prompt_tokens", "iteration_tokens_total_count")

    def read() -> dict[str, float]:
        suffixed = {name: f"vllm:{name}" + ("" if name.endswith("count") else "_total") for name in names}
        return {name: drafting.metric(series) or 0.0 for name, series in suffixed.items()}

    before = read()
    answer = drafting.ask("/v1/completions", {"prompt": "Measure this", "max_tokens": 300, "ignore_eos": True})
    delta = {name: value - before[name] for name, value in read().items()}
    assert delta["generation_tokens"] == 300
    assert delta["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert delta["spec_decode_num_draft_tokens"] == 5 * delta["spec_decode_num_drafts"]
    # A step without a match is no draft, and the last step may be cut by the limit.
    steps = delta["iteration_tokens_total_count"]
    assert delta["spec_decode_num_drafts"] < steps
    assert 0 <= steps + delta["spec_decode_num_accepted_tokens"] - 300 <= 5
    positions = [
        drafting.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(5)
    ]
    assert positions == sorted(positions, reverse=True)  # type: ignore[type-var]
    assert sum(filter(None, positions)) == read()["spec_decode_num_accepted_tokens"]
    started_at = drafting.metric("process_start_time_seconds")
    assert started_at is not None
    assert 0 < time.time() - started_at < 600


@pytest.mark.timing
def test_tokens_come_on_schedule(tmp_path: Path) -> None:
    with started(tmp_path, script={"base_step_ms": 10.0}) as engine:
        engine.wait_ready()
        best = min((_lateness_ms(engine) for _ in range(3)), key=statistics.median)
    assert statistics.median(best) < 1.0
    # Errors do not add up: the last ten are as good as the first ten.
    assert abs(statistics.median(best[-10:]) - statistics.median(best[:10])) < 1.0


def _lateness_ms(engine: Engine) -> list[float]:
    times = [at for at, event in engine.stream({"max_tokens": 80}) if event != "[DONE]"][1:]
    return [abs(at - times[0] - index * 0.010) * 1000 for index, at in enumerate(times)]


def test_speculation_slows_a_single_stream_down(plain: Engine, drafting: Engine) -> None:
    ratios = []
    for number in range(3):
        body = {"messages": [{"role": "user", "content": f"Number {number}"}], "max_tokens": 250, "ignore_eos": True}
        seconds = []
        for engine in (plain, drafting):
            events = [at for at, event in engine.stream(body) if event != "[DONE]"]
            seconds.append(events[-1] - events[1])
        ratios.append(seconds[1] / seconds[0])
    assert 1.05 < statistics.mean(ratios) < 1.30


def test_running_requests_share_steps(plain: Engine) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        body = {"max_tokens": 100, "ignore_eos": True}
        streams = list(pool.map(lambda _: plain.stream(body), range(4)))
    tpots = [(events[-2][0] - events[1][0]) / 99 for events in streams]
    # Four tokens a step cost 1 + 3 x 0.21.
    assert statistics.median(tpots) == pytest.approx(0.002 * 1.63, rel=0.1)


def test_requests_beyond_the_batch_limit_wait(tmp_path: Path) -> None:
    with started(tmp_path, "--max-num-seqs", "2") as engine:
        engine.wait_ready()
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            body = {"max_tokens": 150, "ignore_eos": True}
            futures = [pool.submit(engine.stream, body) for _ in range(5)]
            wait_until(lambda: engine.metric("vllm:num_requests_waiting") == 3, 5)
            assert engine.metric("vllm:num_requests_running") == 2
            assert all(future.result()[-1][1] == "[DONE]" for future in futures)


def test_prefix_cache_shortens_prefill(tmp_path: Path) -> None:
    prompt = {"prompt": "word " * 2000, "max_tokens": 2}
    with started(tmp_path, script={"prefill_ms_per_token": 0.1}) as engine:
        engine.wait_ready()
        first, second = _seconds(engine, prompt), _seconds(engine, prompt)
        assert first > 0.2 > 0.1 > second
        assert (engine.metric("vllm:prefix_cache_hits_total") or 0) > 1900
    with started(tmp_path, "--no-enable-prefix-caching") as engine:
        engine.wait_ready()
        assert [_seconds(engine, prompt) > 0.1 for _ in range(2)] == [True, True]


def _seconds(engine: Engine, body: dict[str, Any]) -> float:
    began = time.monotonic()
    engine.ask("/v1/completions", body)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("style", "names"),
    [
        ("reasoning", {"reasoning"}),
        ("reasoning_content", {"reasoning_content"}),
        ("both", {"reasoning", "reasoning_content"}),
        ("none", set()),
    ],
)
def test_reasoning_fields(tmp_path: Path, style: str, names: set[str]) -> None:
    script = {"reasoning": style, "answer_tokens": [40, 40]}
    with started(tmp_path, script=script) as engine:
        engine.wait_ready()
        deltas = [e["choices"][0]["delta"] for _, e in engine.stream({"max_tokens": 200}) if e != "[DONE]"][1:]
        thinking = [delta for delta in deltas if "content" not in delta]
        assert len(thinking) == (16 if names else 0)
        assert all(set(delta) == names for delta in thinking)
        cut = engine.ask("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 8})
        assert cut["choices"][0]["finish_reason"] == "length"
        assert (cut["choices"][0]["message"]["content"] is None) == bool(names)
        switch = {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 8}
        assert engine.ask("/v1/chat/completions", switch)["choices"][0]["message"]["content"]


def test_reasoning_parser_flag_brings_the_new_field(tmp_path: Path) -> None:
    with started(tmp_path, "--reasoning-parser", "qwen3", script={"ignore_thinking_switch": True}) as engine:
        engine.wait_ready()
        body = {"messages": MESSAGES, "max_tokens": 8, "chat_template_kwargs": {"enable_thinking": False}}
        answer = engine.ask("/v1/chat/completions", body)
        assert answer["choices"][0]["message"]["reasoning"]
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 8}


@pytest.mark.parametrize("size", [2, 16])
def test_tokens_per_chunk(tmp_path: Path, size: int) -> None:
    with started(tmp_path, script={"tokens_per_chunk": size}) as engine:
        engine.wait_ready()
        events = [event for _, event in engine.stream({"max_tokens": 37, "ignore_eos": True, **RUNNING})][:-1]
        counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
        assert counts == [*range(0, 37, size), 37]
        alone = engine.ask("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 37, "ignore_eos": True})
        assert alone["usage"]["completion_tokens"] == 37


def test_stream_interval_sends_the_first_token_at_once(tmp_path: Path) -> None:
    with started(tmp_path, "--stream-interval", "5") as engine:
        events = [event for _, event in engine.wait_ready().stream({"max_tokens": 14, "ignore_eos": True, **RUNNING})]
        assert [event["usage"]["completion_tokens"] for event in events[:-2]] == [0, 1, 6, 11, 14]
