"""Trial files: flags and variables in their final form, null in both spellings, and every problem with its place."""

import textwrap

import pytest

from specd.config import parse_config, parse_trials
from specd.errors import ConfigError
from specd.settings import TrialSpec

CONFIG = parse_config(
    '[hosts.h]\n[services.kimi]\nhost = "h"\nunit = "k"\n[benchmarks.short]\nlevels = [1]\n', "config.toml"
)


def trials(text: str) -> list[TrialSpec]:
    return parse_trials(textwrap.dedent(text), "t.toml", CONFIG)


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        trials(text)
    return [str(problem) for problem in caught.value.problems]


def test_a_whole_trial() -> None:
    [spec] = trials(
        """
        [[trial]]
        name = "ngram-5-4"
        service = "kimi"
        note = '''two
        lines'''
        benchmark = "short"
        after_better = "keep"
        keep_unit = true
        [trial.flags]                     # null removes a flag; a table becomes JSON
        speculative-config = { method = "ngram", num_speculative_tokens = 5, prompt_lookup_max = 4 }
        enforce-eager = true
        max-num-seqs = 64
        gpu-memory-utilization = 0.9
        [trial.env]
        VLLM_ATTENTION_BACKEND = "TRITON_MLA"
        """
    )
    assert spec == TrialSpec(
        name="ngram-5-4",
        service="kimi",
        note="two\nlines",
        benchmark="short",
        after_better="keep",
        keep_unit=True,
        flags={
            "speculative-config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
            "enforce-eager": True,
            "max-num-seqs": 64,
            "gpu-memory-utilization": 0.9,
        },
        env={"VLLM_ATTENTION_BACKEND": "TRITON_MLA"},
    )


def test_null_bare_or_in_quotes_removes_and_is_json_s_null_inside() -> None:
    [spec] = trials(
        """
        [[trial]]
        name = "a"
        service = "kimi"
        flags = { first = null, second = "null", third = { x = null, y = "null", z = [null] }, "null" = 1 }
        [trial.env]
        A = null   # gone
        B = "null"
        C = "a null and # one"
        """
    )
    assert spec.flags == {
        "first": None,
        "second": None,
        "third": {"x": None, "y": "null", "z": [None]},
        "null": 1,
    }
    assert spec.env == {"A": None, "B": None, "C": "a null and # one"}


def test_a_flag_may_be_written_as_on_a_command_line() -> None:
    [spec] = trials(
        """
        [[trial]]
        name = "a"
        service = "kimi"
        [trial.flags]
        --max_num-seqs = 4
        speculative_config.draft_model = "x"
        "compilation_config.cudagraph_mode" = "NONE"
        """
    )
    assert spec.flags == {
        "max-num-seqs": 4,
        "speculative-config": {"draft_model": "x"},
        "compilation-config.cudagraph_mode": "NONE",
    }


def test_all_problems_at_once() -> None:
    assert problems_of(
        """\
        [[trial]]
        name = "a"
        service = "kimi"
        [trial.flags]
        --max_num-seqs = null
        max-num-seqs = 4
        speculative_config = { method = "ngram", w = 1979-05-27, v = nan, u = -nan }
        "a b" = 1
        [trial.env]
        A = null
        B = 3
        "1C" = "x"

        [[trial]]
        name = "a"
        service = "kimmi"
        flag = {}
        benchmark = "shrt"
        after_better = null
        [[trial]]
        rehearsal = true
        name = "Upper"
        """
    ) == [
        "t.toml:6: trial[0].flags.max-num-seqs: is the same flag as --max_num-seqs",
        "t.toml:7: trial[0].flags.speculative-config.w: is a date or time: put it in quotes",
        "t.toml:7: trial[0].flags.speculative-config.v: must be a finite number: JSON has no other",
        "t.toml:7: trial[0].flags.speculative-config.u: must be a finite number: JSON has no other",
        't.toml:8: trial[0].flags."a b": is not a flag\'s name',
        "t.toml:11: trial[0].env.B: must be a string, not a number: put it in quotes",
        "t.toml:12: trial[0].env.1C: is not the name of an environment variable",
        "t.toml:15: trial[1].name: the trial at line 1 is called a too",
        "t.toml:16: trial[1].service: no service is called kimmi; did you mean kimi?",
        "t.toml:17: trial[1].flag: unknown key; did you mean flags?",
        "t.toml:18: trial[1].benchmark: no benchmark plan is called shrt; did you mean short?",
        "t.toml:19: trial[1].after_better: must be a string, not null",
        "t.toml:20: trial[2].service: is missing",
        "t.toml:21: trial[2].rehearsal: unknown key; known here are name, service, flags, env, benchmark, "
        "after_better, keep_unit, note",
        "t.toml:22: trial[2].name: 'Upper' is not a name: 1 to 63 lower-case letters, digits, dots, dashes and "
        "underscores, a letter or digit first",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "t.toml: holds no [[trial]] table"),
        ("trial = []", "t.toml:1: trial: holds no [[trial]] table"),
        ('[trial]\nname = "a"', "t.toml:1: trial: write [[trial]], with two brackets: a file holds a list of trials"),
        ("trial = [3]", "t.toml:1: trial[0]: must be a table, not a number"),
        (
            '[[trial]]\nname = "a"\nservice = "kimi"\nflags = 3',
            "t.toml:4: trial[0].flags: must be a table, not a number",
        ),
        ('[[trial]]\nname = "a"\nservice = "kimi"\nenv = [1]', "t.toml:4: trial[0].env: must be a table, not a list"),
    ],
)
def test_files_that_are_not_trial_files(text: str, words: str) -> None:
    assert words in problems_of(text)


def test_unknown_keys_of_the_file() -> None:
    assert problems_of('[[trials]]\nname = "a"') == [
        "t.toml: holds no [[trial]] table",
        "t.toml:1: trials: unknown key; a trial file holds [[trial]] tables only",
    ]


def test_after_a_bare_null_lines_and_columns_of_syntax_errors_are_the_file_s() -> None:
    assert problems_of("[[trial]]\nflags = { a = null, b = null }\nx = null null\ny = 1") == [
        "t.toml:3:5: not TOML: invalid value"
    ]
    assert problems_of("flags = { a = null, b = = }") == ["t.toml:1:25: not TOML: invalid value"]


def test_a_value_is_never_repeated_in_a_problem() -> None:
    secret = "sk-123456789"
    found = problems_of(
        f'[[trial]]\nname = "a"\nservice = "kimi"\n[trial.env]\nA = ["{secret}"]\nB = "{secret}\\u0000"\n'
        f'[trial.flags]\napi-key = "{secret}\\u0000"\n'
    )
    assert len(found) == 3
    assert secret not in "".join(found)
