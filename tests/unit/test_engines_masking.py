"""Secrets are found by name and hidden wherever text is shown."""

import pytest

from specd.engines.masking import MASK, is_secret_name, mask, mask_words, secrets_in


@pytest.mark.parametrize(
    "name",
    ["--api-key", "--api_key", "HF_TOKEN", "VLLM_API_KEY", "--hf-token", "DB_PASSWORD", "--ssl-keyfile-password"],
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "--max-num-batched-tokens",
        "--spec-tokens",
        "--num-speculative-tokens",
        "--tokenizer",
        "--skip-tokenizer-init",
        "--ssl-keyfile",
        "--keep-alive",
        "TOKENIZERS_PARALLELISM",
        "--max-tokens",
    ],
)
def test_harmless_names(name: str) -> None:
    assert not is_secret_name(name)


def test_finds_values_of_flags_in_each_spelling_and_list() -> None:
    argv = ["vllm", "serve", "m", "--api-key", "key-one", "key-two", "--hf-token=hf_three", "--port", "8000"]
    assert set(secrets_in(argv, {"VLLM_API_KEY": "key-four", "HOME": "/home/op"})) == {
        "key-one",
        "key-two",
        "hf_three",
        "key-four",
    }


def test_finds_assignments_and_passwords_in_urls() -> None:
    argv = ["env", "HF_TOKEN=hf_abcdef", "vllm", "serve", "m", "--otlp", "http://user:s3cret@host:4317"]
    assert set(secrets_in(argv)) == {"hf_abcdef", "s3cret"}


def test_masks_the_longest_first_and_leaves_short_values_alone() -> None:
    assert mask("token abcdef and abcd, not ab", ["abcd", "abcdef", "ab"]) == f"token {MASK} and {MASK}, not ab"


def test_masked_words_hide_short_values_too() -> None:
    shown = mask_words(["vllm", "serve", "m", "--api-key", "k1", "--api-key=k2", "--port", "1"])
    assert shown == ("vllm", "serve", "m", "--api-key", MASK, f"--api-key={MASK}", "--port", "1")
