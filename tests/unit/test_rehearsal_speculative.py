"""The speculative configuration: defaults and refusals in vLLM's words."""

from pathlib import Path
from typing import Any

import pytest

from specd.rehearsal.speculative import Speculative, SpeculativeError, merge_shortcuts, resolve


def refusal(raw: Any) -> str:
    with pytest.raises(SpeculativeError) as caught:
        resolve(raw, "/models/target", 8)
    return str(caught.value)


@pytest.mark.parametrize(
    ("extra", "window"),
    [
        ({}, (5, 5)),
        ({"prompt_lookup_max": 4}, (4, 4)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_min": 2, "prompt-lookup-max": 7}, (2, 7)),
    ],
)
def test_lookup_window_defaults(extra: dict[str, int], window: tuple[int, int]) -> None:
    resolved = resolve({"method": "ngram", "num_speculative_tokens": 5, **extra}, "t", 1)
    assert resolved == Speculative("ngram", 5, None, *window)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (
            {"method": "ngram", "num_speculative_tokens": 5, "bogus_key": 1},
            "bogus_key\n  Unexpected keyword argument "
            "[type=unexpected_keyword_argument, input_value=1, input_type=int]",
        ),
        ({"method": "bogus", "num_speculative_tokens": 5}, "method\n  Input should be 'ngram', 'medusa', "),
        (
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 4, "prompt_lookup_max": 2},
            "Value error, prompt_lookup_min=4 must be <= prompt_lookup_max=2 [type=value_error, ",
        ),
        ({"method": "ngram", "prompt_lookup_max": 4}, "num_speculative_tokens must be provided with speculative model"),
        (
            {"method": "ngram", "num_speculative_tokens": 0},
            "num_speculative_tokens\n  Input should be greater than 0 "
            "[type=greater_than, input_value=0, input_type=int]",
        ),
        (
            {"method": "draft_model", "model": "/no/such/draft", "num_speculative_tokens": 3},
            "Value error, Invalid repository ID or local directory specified: '/no/such/draft'.",
        ),
        (
            {"method": "eagle3", "num_speculative_tokens": 3},
            "num_speculative_tokens was provided but without speculative model.",
        ),
        (
            {"method": "ngram", "num_speculative_tokens": 3, "tensor_parallel_size": 1},
            "Please pass 'draft_tensor_parallel_size' instead.",
        ),
        (
            {"method": "eagle", "model": "a/b", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 3},
            "speculative_draft_tensor_parallel_size=3 cannot be other value than 1",
        ),
        ({"method": "ngram", "num_speculative_tokens": "five"}, "unable to parse string as an integer"),
    ],
)
def test_refuses(raw: Any, words: str) -> None:
    text = refusal(raw)
    head = "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n"
    assert text.startswith(head)
    assert words in text


def test_all_field_mistakes_come_at_once() -> None:
    text = refusal({"method": "bogus", "num_speculative_tokens": 0, "nope": 1})
    assert "3 validation errors for SpeculativeConfig" in text
    assert [line for line in text.splitlines() if line in ("num_speculative_tokens", "method", "nope")] == [
        "num_speculative_tokens",
        "method",
        "nope",
    ]


def test_not_an_object() -> None:
    assert refusal(5).startswith("AttributeError: 'int' object")


def test_off_by_default() -> None:
    assert resolve(None, "t", 1) is None


@pytest.mark.parametrize(
    ("raw", "method", "model"),
    [
        ({"model": "ngram", "num_speculative_tokens": 2}, "ngram", None),
        ({"model": "org/some-EAGLE3-head", "num_speculative_tokens": 2}, "eagle3", "org/some-EAGLE3-head"),
        ({"model": "org/small", "num_speculative_tokens": "2"}, "draft_model", "org/small"),
        ({"method": "deepseek_mtp", "num_speculative_tokens": 2}, "mtp", "/models/target"),
        ({"method": "suffix"}, "suffix", None),
    ],
)
def test_method_is_inferred(raw: dict[str, Any], method: str, model: str | None) -> None:
    resolved = resolve(raw, "/models/target", 1)
    assert resolved is not None
    assert (resolved.method, resolved.model) == (method, model)
    assert resolved.num_speculative_tokens == (24 if method == "suffix" else 2)


def test_an_existing_draft_directory_is_accepted(tmp_path: Path) -> None:
    raw = {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 3}
    resolved = resolve(raw, "t", 1)
    assert repr(resolved) == f"SpeculativeConfig(method='eagle3', model='{tmp_path}', num_spec_tokens=3)"


def test_shortcut_flags_join_the_json() -> None:
    values = {"speculative_config": {"prompt_lookup_max": 4}, "spec_method": "ngram", "spec_tokens": 5}
    assert merge_shortcuts(values) == {"prompt_lookup_max": 4, "method": "ngram", "num_speculative_tokens": 5}
    with pytest.raises(SpeculativeError, match="--spec-method and --speculative-config"):
        merge_shortcuts({"speculative_config": {"method": "ngram"}, "spec_method": "ngram"})
