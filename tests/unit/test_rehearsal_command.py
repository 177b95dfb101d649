"""The command line: spelling, dotted keys, duplicates and vLLM's words for refusals."""

import json
import pkgutil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.rehearsal.command import UsageError, parse

FLAGS = [json.loads(line) for line in (pkgutil.get_data("specd.rehearsal", "flags.jsonl") or b"").splitlines()]
SAMPLES = {"int": "7", "float": "0.5", "loads": "{}", "json": "{}", "config": "{}", "dict_or_str": "text"}


def changed(*argv: str) -> dict[str, Any]:
    command = parse(["m", *argv])
    return {key: value for key, value in command.changed.items() if key not in ("model", "model_tag")}


def refusal(*argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(["m", *argv])
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-sc", '{"method": "ngram"}'], {"speculative_config": {"method": "ngram"}}),
        (["--speculative_config={}"], {"speculative_config": {}}),
        (
            ["-sc.method", "ngram", "-sc.num_speculative_tokens", "4"],
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}},
        ),
        (["--speculative_config.method=ngram"], {"speculative_config": {"method": "ngram"}}),
        (["--speculative-config={}", "--speculative-config.b", "2"], {"speculative_config": {"b": 2}}),
        (["-sc", "null"], {}),
        (["-O3"], {"optimization_level": "3"}),
        (["-O", "1"], {"optimization_level": "1"}),
        (["--max-model-len", "8k"], {"max_model_len": 8000}),
        (["--max-model-len", "8K"], {"max_model_len": 8192}),
        (["--max-model-len", "25.6k"], {"max_model_len": 25_600}),
        (["--max-model-len", "auto"], {"max_model_len": -1}),
        (["--max-mod", "5"], {"max_model_len": 5}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["-tp=4", "-dp", "2"], {"tensor_parallel_size": 4, "data_parallel_size": 2}),
        (["--served-model-name", "a", "b", "--port", "1"], {"served_model_name": ["a", "b"], "port": 1}),
        (["--device-memory-utilization", "0.8"], {"gpu_memory_utilization": 0.8}),
        (["--cudagraph-capture-sizes", "1", "2"], {"cudagraph_capture_sizes": [1, 2]}),
        (["--seed", "0", "--cpu-offload-gb", "0"], {}),
        (["-cc.mode=3", "-cc.custom_ops+", "a,b"], {"compilation_config": {"mode": 3, "custom_ops": ["a", "b"]}}),
        (["--api-key", "one", "two", "--hf-token", "three"], {"api_key": ["***", "***"], "hf_token": "***"}),
    ],
)
def test_accepts(argv: list[str], expected: dict[str, Any]) -> None:
    assert changed(*argv) == expected


@pytest.mark.parametrize(
    ("argv", "last_line"),
    [
        (["--max-num-seqs", "abc"], "argument --max-num-seqs: invalid int value: 'abc'"),
        (["--max-model-len", "abc"], "argument --max-model-len: invalid human_readable_int_or_auto value: 'abc'"),
        (["-tp", "x"], "argument --tensor-parallel-size/-tp: invalid int value: 'x'"),
        (["--gpu-memory-utilization", "x"], "--device-memory-utilization: invalid float value: 'x'"),
        (["-sc", '{"method":'], 'argument --speculative-config/-sc: Value {"method": cannot be converted to'),
        (["--dtype"], "argument --dtype: expected one argument"),
        (["--served-model-name"], "argument --served-model-name: expected at least one argument"),
        (["--spec", "5"], "ambiguous option: --spec could match"),
        (["--enforce-eager=1"], "argument --enforce-eager/--no-enforce-eager: ignored explicit argument '1'"),
        (["--kv-cache-memory-bytes", "1.5K"], "Decimals are not allowed with binary suffixes like K."),
        (["--config", "f.yaml"], "does not read config files"),
        (["-sc.method"], "argument -sc.method: expected one argument"),
    ],
)
def test_refuses(argv: list[str], last_line: str) -> None:
    text = refusal(*argv)
    assert text.startswith("usage: vllm serve [model_tag] [options]\nvllm serve: error: ")
    assert last_line in text.splitlines()[-1]


def test_bad_choice_lists_the_choices() -> None:
    assert "argument --dtype: invalid choice: 'foo' (choose from " in refusal("--dtype", "foo")


def test_unknown_flag_is_refused_by_the_outer_parser() -> None:
    text = refusal("--no-such-flag", "1")
    assert text.startswith("usage: vllm [-h] [-v]\n")
    assert text.endswith("vllm: error: unrecognized arguments: --no-such-flag 1\n")


def test_unknown_key_in_a_nested_config() -> None:
    text = refusal("--compilation-config", '{"cudagraph_mod": "NONE"}')
    assert "1 validation error for CompilationConfig\ncudagraph_mod\n  Unexpected keyword argument" in text


def test_duplicates_later_wins_with_a_warning() -> None:
    command = parse(["m", "--port", "1", "--max_num_seqs", "3", "--port=2", "--max-num-seqs", "4"])
    assert (command.values["port"], command.values["max_num_seqs"]) == (2, 4)
    assert command.warnings == ["Found duplicate keys --port, --max-num-seqs"]


def test_model_by_flag_moves_to_the_front() -> None:
    command = parse(["--port", "1", "--model=x"])
    assert command.model == "x"
    assert "you should provide the model as a positional argument" in command.warnings[0]
    assert "unrecognized arguments: m" in refusal("--model", "x")


def test_module_form_takes_the_model_by_flag() -> None:
    command = parse(["--model", "x", "-q", "fp8"], is_module_form=True)
    assert (command.model, command.warnings) == ("x", [])
    with pytest.raises(UsageError, match=r"api_server.py: error: unrecognized arguments: --nope"):
        parse(["--model", "x", "--nope"], is_module_form=True)


def test_model_defaults_to_vllms() -> None:
    assert parse([]).model == "Qwen/Qwen3-0.6B"


@given(st.sampled_from([flag for flag in FLAGS if flag["dest"] not in ("config", "model")]), st.booleans())
def test_every_flag_parses_in_both_spellings(flag: dict[str, Any], with_underscores: bool) -> None:
    for name in flag["names"]:
        spelled = f"--{name[2:].replace('-', '_')}" if with_underscores and name.startswith("--") else name
        value = str(flag["choices"][0]) if "choices" in flag else SAMPLES.get(flag["kind"], "3")
        argv = [spelled] if flag["arity"] in ("flag", "pair") else [spelled, value]
        command = parse(["m", *argv])
        assert command.values["model"] == "m"
        if flag["arity"] in ("flag", "pair"):
            assert command.values[flag["dest"]] is not name.startswith("--no-")
        else:
            assert command.values[flag["dest"]] is not None
