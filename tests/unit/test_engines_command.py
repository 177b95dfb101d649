"""Command lines in all their forms: found behind wrappers, read, and changed in the right place, once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.engines import by_name, recognise
from specd.engines.engine import FlagValue
from specd.errors import EngineError

VLLM = by_name("vllm")
SERVE = ["/opt/vllm/bin/vllm", "serve", "/models/big", "--port", "8001"]


@pytest.mark.parametrize(
    ("prefix", "wrapper"),
    [
        ([], ""),
        (["/usr/bin/env", "CUDA_VISIBLE_DEVICES=0,1", "HF_HOME=/hf"], "env"),
        (["env", "-u", "LD_PRELOAD", "A=b"], "env"),
        (["numactl", "--cpunodebind=0", "--membind=0"], "numactl"),
        (["/usr/bin/numactl", "-N", "0", "-m", "0"], "numactl"),
        (["taskset", "-c", "0-15"], "taskset"),
        (["nice", "-n", "5"], "nice"),
        (["nice", "-10"], "nice"),
        (["ionice", "-c", "2", "-n7"], "ionice"),
        (["chrt", "-f", "20"], "chrt"),
        (["stdbuf", "-oL", "-e", "0"], "stdbuf"),
        (["setpriv", "--reuid=vllm", "--regid", "vllm", "--init-groups", "--"], "setpriv"),
        (["uv", "run", "--project", "/srv/p", "--no-sync"], "uv run"),
        (["conda", "run", "-n", "vllm", "--no-capture-output"], "conda run"),
        (["env", "A=b", "numactl", "-l", "nice"], "env, numactl, nice"),
    ],
)
def test_looks_through_wrappers(prefix: list[str], wrapper: str) -> None:
    found = recognise([*prefix, *SERVE])
    assert found is not None
    engine, command = found
    assert (engine.name, command.server_at, command.wrapper) == ("vllm", len(prefix) + 2, wrapper)
    assert (command.model, command.port, command.address) == ("/models/big", 8001, "127.0.0.1")


@pytest.mark.parametrize(
    "argv",
    [
        ["/opt/vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/big"],
        ["python3.12", "-u", "-X", "dev", "-m", "vllm.entrypoints.openai.api_server", "--model=/models/big"],
        ["/opt/vllm/bin/python3", "/opt/vllm/bin/vllm", "serve", "/models/big"],
        ["/opt/vllm/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "/models/big"],
        ["uv", "run", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/big"],
        ["/opt/vllm/bin/vllm", "serve", "--enforce-eager", "--model", "/models/big"],
        ["/opt/vllm/bin/vllm", "serve", "--enforce-eager", "/models/big", "-tp", "8"],
        ["/opt/vllm/bin/vllm", "serve", "--api_key", "a", "b", "--port=8000", "/models/big"],
    ],
)
def test_program_forms(argv: list[str]) -> None:
    command = VLLM.recognise(argv)
    assert command is not None
    assert (command.model, command.served_name, command.port) == ("/models/big", "/models/big", 8000)


def test_positional_model_wins_and_served_name_is_the_first() -> None:
    command = VLLM.recognise([*SERVE, "--model", "/other", "--served-model-name", "kimi", "kimi-2", "--host", "::"])
    assert command is not None
    assert (command.model, command.served_name, command.address) == ("/models/big", "kimi", "::1")


@pytest.mark.parametrize(
    "argv",
    [["/usr/bin/nginx", "-g", "daemon off;"], ["vllm", "bench", "serve"], ["python", "-c", "print()"], ["nice"], []],
)
def test_other_programs_are_not_servers(argv: list[str]) -> None:
    assert recognise(argv) is None


def test_a_unix_socket_server_is_refused() -> None:
    with pytest.raises(EngineError, match="unix socket"):
        recognise([*SERVE, "--uds", "/run/vllm.sock"])


def test_flag_spellings_read_alike() -> None:
    spellings = [
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}'],
        ['--speculative_config={"method": "ngram", "num_speculative_tokens": 5}'],
        ["-sc", '{"method":"ngram","num_speculative_tokens":5}'],
        ["--speculative-config.method", "ngram", "--speculative_config.num_speculative_tokens=5"],
        ["-sc.method=ngram", "-sc.num_speculative_tokens", "5"],
        ["--spec-method", "ngram", "--spec-tokens", "5"],
    ]
    asked = []
    for words in spellings:
        command = VLLM.recognise([*SERVE, *words])
        assert command is not None
        asked.append(VLLM.speculation_asked(command))
    assert asked == [{"method": "ngram", "num_speculative_tokens": 5}] * len(spellings)


def test_dotted_keys_of_two_spellings_are_not_merged_as_in_the_engine() -> None:
    command = VLLM.recognise([*SERVE, "--speculative-config.method", "ngram", "-sc.num_speculative_tokens=3"])
    assert command is not None
    assert VLLM.speculation_asked(command) == {"num_speculative_tokens": 3}


def test_no_speculation_is_empty() -> None:
    command = VLLM.recognise(SERVE)
    assert command is not None
    assert VLLM.speculation_asked(command) == {}


def test_flags_are_read_by_kind() -> None:
    words = [
        "--enforce_eager",
        "--no-enable-prefix-caching",
        "-O3",
        "-tp=4",
        "--port",
        "1",
        "--port",
        "2",
        "--xyz",
        "-1",
    ]
    command = VLLM.recognise(["vllm", "serve", "m", *words])
    assert command is not None
    assert command.flags == {
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "optimization-level": "3",
        "tensor-parallel-size": "4",
        "port": "2",
        "xyz": "-1",
    }


NGRAM: FlagValue = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
NGRAM_TEXT = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'


@pytest.mark.parametrize(
    "before",
    [
        ["--speculative-config", '{"method":"eagle"}'],
        ['--speculative_config={"method":"eagle"}'],
        ["-sc", '{"method":"eagle"}'],
        ["--speculative-config.method", "eagle", "--speculative_config.model=/d"],
        ["--spec-method", "eagle", "--spec-model", "/d", "--spec-tokens", "3"],
        ["-sc", "{}", "--max-num-seqs", "8", "--speculative-config", "{}", "--spec-tokens=1"],
    ],
)
def test_a_change_replaces_all_spellings_once(before: list[str]) -> None:
    changed = VLLM.change([*SERVE, *before, "--enforce-eager"], {"speculative-config": NGRAM})
    assert changed.count("--speculative-config") == 1
    assert changed[changed.index("--speculative-config") + 1] == NGRAM_TEXT
    assert not [
        word for word in changed if word.startswith(("-sc", "--spec-", "--speculative_config", "--speculative-config."))
    ]
    assert changed[:5] == tuple(SERVE)
    assert "--enforce-eager" in changed


@pytest.mark.parametrize("gone", [None, "null"])
def test_null_removes_all_spellings(gone: FlagValue) -> None:
    argv = [*SERVE, "-sc", "{}", "--spec-tokens", "4", "--speculative_config.method=ngram", "--enforce-eager"]
    assert VLLM.change(argv, {"speculative_config": gone}) == (*SERVE, "--enforce-eager")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max-num-seqs": 16}, ["--max-num-seqs", "16"]),
        ({"--max_num_seqs": "16"}, ["--max-num-seqs", "16"]),
        ({"gpu-memory-utilization": 0.9}, ["--gpu-memory-utilization", "0.9"]),
        ({"enforce-eager": True}, ["--enforce-eager"]),
        ({"enable-prefix-caching": False}, ["--no-enable-prefix-caching"]),
        ({"no-enable-prefix-caching": True}, ["--no-enable-prefix-caching"]),
        ({"disable-log-stats": False}, []),
        ({"brand-new-switch": True}, ["--brand-new-switch"]),
        ({"cudagraph-capture-sizes": [1, 2, 4]}, ["--cudagraph-capture-sizes", "1", "2", "4"]),
        ({"allowed-origins": ["*"]}, ["--allowed-origins", '["*"]']),
        ({"compilation-config": {"mode": 3, "sizes": [1]}}, ["--compilation-config", '{"mode": 3, "sizes": [1]}']),
        ({"brand-new": {"a": 1}}, ["--brand-new", '{"a": 1}']),
        ({"max-model-len": -1}, ["--max-model-len=-1"]),
        ({"tp": 4}, ["--tensor-parallel-size", "4"]),
        ({"speculative-config.method": "ngram"}, ["--speculative-config", '{"method": "ngram"}']),
    ],
)
def test_rendered_words(flags: dict[str, FlagValue], words: list[str]) -> None:
    assert VLLM.change(SERVE, flags) == (*SERVE, *words)


def test_one_key_of_a_json_flag_is_changed_inside_it() -> None:
    argv = [*SERVE, "--speculative-config", NGRAM_TEXT]
    changed = VLLM.change(argv, {"speculative-config.num_speculative_tokens": 3})
    assert json.loads(changed[-1]) == {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    removed = VLLM.change(argv, {"speculative-config.prompt_lookup_max": None})
    assert json.loads(removed[-1]) == {"method": "ngram", "num_speculative_tokens": 5}


def test_a_value_stands_where_the_flag_stood() -> None:
    argv = ["vllm", "serve", "m", "--port", "1", "--max-num-seqs", "8", "--enforce-eager"]
    changed = VLLM.change(argv, {"max-num-seqs": 9})
    assert changed == ("vllm", "serve", "m", "--port", "1", "--max-num-seqs", "9", "--enforce-eager")


def test_a_list_never_swallows_the_model() -> None:
    changed = VLLM.change(["vllm", "serve", "--max-num-seqs", "8", "m"], {"max-num-seqs": None, "api-key": ["a", "b"]})
    assert changed == ("vllm", "serve", "m", "--api-key", "a", "b")
    replaced = VLLM.change(["vllm", "serve", "--api-key=a", "m"], {"api-key": ["b"]})
    assert replaced == ("vllm", "serve", "m", "--api-key", "b")


def test_the_model_itself_can_be_changed_not_removed() -> None:
    assert VLLM.change(SERVE, {"model": "/models/new"})[2] == "/models/new"
    with pytest.raises(EngineError, match="model"):
        VLLM.change(SERVE, {"model": None})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"speculative-config": '\'{"method": "ngram"}\''}, "begins with a quote"),
        ({"speculative-config": '"{}"'}, "begins with a quote"),
        ({"enforce-eager": "yes"}, "is a switch"),
        ({"max-num-seqs": True}, "takes a value"),
        ({"max-num-seqs": float("nan")}, "can't be nan"),
        ({"speculative-config": {"a": float("inf")}}, "can't be written as JSON"),
        ({"max-num-seqs": 1, "max_num_seqs": 2}, "the same flag"),
        ({"max-num-seqs.x": 1}, "no keys inside"),
        ({"a b": 1}, "no name of a flag"),
        ({"--": 1}, "no name of a flag"),
        ({"port": "1\0"}, "NUL"),
        ({"spec-tokens": 3, "speculative-config": {"method": "ngram"}}, "can't be changed together"),
    ],
)
def test_values_that_are_refused(flags: dict[str, FlagValue], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        VLLM.change(SERVE, flags)


def test_a_shortcut_that_contradicts_the_json_is_refused() -> None:
    with pytest.raises(EngineError, match="conflicts with num_speculative_tokens"):
        VLLM.change([*SERVE, "--speculative-config", NGRAM_TEXT], {"spec-tokens": 3})


def test_a_change_of_another_program_is_refused_without_its_secrets() -> None:
    with pytest.raises(EngineError, match="no vllm server") as caught:
        VLLM.change(["nginx", "--api-key", "hush-hush"], {"port": 1})
    assert "hush" not in str(caught.value)


def test_is_json() -> None:
    assert VLLM.is_json("--speculative_config")
    assert VLLM.is_json("-sc")
    assert VLLM.is_json("hf-overrides")
    assert not VLLM.is_json("port")


_words = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=0, max_size=30)
_json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(_words, _json_values, min_size=1, max_size=4))
def test_json_survives_a_change(value: dict[str, FlagValue]) -> None:
    changed = VLLM.change(SERVE, {"speculative-config": value})
    command = VLLM.recognise(list(changed))
    assert command is not None
    assert command.flags["speculative-config"] == value
    assert VLLM.change(list(changed), {"speculative-config": None}) == tuple(SERVE)


@given(_words.filter(lambda text: text != "null"))
def test_any_text_survives_a_change(text: str) -> None:
    changed = VLLM.change(SERVE, {"chat-template": text})
    command = VLLM.recognise(list(changed))
    assert command is not None
    assert command.flags["chat-template"] == text
