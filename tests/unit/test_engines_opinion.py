"""An engine's refusal in words: the flag at fault, what was given, what was probably meant."""

from specd.checks import CheckStatus
from specd.engines.vllm.opinion import check_of

FLAGS = {"speculative-config", "max-model-len"}


def refused(error: str, stage: str = "config") -> tuple[str, str]:
    check = check_of({"ok": False, "stage": stage, "error": error, "exit_code": 1, "version": "0.32.0"}, FLAGS)
    assert check.status is CheckStatus.FAILED
    return check.evidence, check.fix


def test_a_draft_of_an_unknown_architecture_is_told_without_the_list_of_known_ones() -> None:
    known = ", ".join(f"'Arch{number}ForCausalLM'" for number in range(300))
    evidence, fix = refused(
        "ValidationError: 1 validation error for SpeculativeConfig\n  Value error, Model architectures "
        f"['EagleGemma3ForCausalLM'] are not supported for now. Supported architectures: dict_keys([{known}]) "
        "[type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]"
    )
    assert evidence == (
        "vLLM 0.32.0 would end with status 1: --speculative-config: "
        "the engine has no model of the architecture ['EagleGemma3ForCausalLM']"
    )
    assert "draft" in fix


def test_a_misspelled_method_is_told_with_what_was_meant() -> None:
    evidence, fix = refused(
        "ValidationError: 1 validation error for SpeculativeConfig\nmethod\n  Input should be 'ngram', 'medusa', "
        "'eagle3' or 'dspark' [type=literal_error, input_value='nngram', input_type=str]\n    For further information"
    )
    assert "--speculative-config refuses method: 'nngram' is none of 'ngram', 'medusa'" in evidence
    assert fix == "did you mean ngram?"


def test_an_unsupported_method_names_the_flag() -> None:
    evidence, _ = refused("NotImplementedError: Unsupported speculative method: 'mtp'")
    assert evidence.endswith("--speculative-config: NotImplementedError: Unsupported speculative method: 'mtp'")


def test_a_length_beyond_the_models_names_the_flag_and_no_class() -> None:
    evidence, _ = refused(
        "ValidationError: 1 validation error for ModelConfig\n  Value error, User-specified max_model_len (1000000) is "
        "greater than the derived max_model_len (max_position_embeddings=32768.0) [type=value_error, input_value=1]"
    )
    assert "--max-model-len: User-specified max_model_len (1000000) is greater than" in evidence


def test_an_unknown_argument_is_told_with_the_nearest_flag() -> None:
    evidence, fix = refused("vllm serve: error: unrecognized arguments: --max-model-lenn 5", "argparse")
    assert "--max-model-lenn" in evidence
    assert fix == "did you mean --max-model-len?"
