"""Prompt sets, and what a plan sends: equal on both sides, never alike within one."""

import json
from collections import Counter
from pathlib import Path

import pytest

from specd.bench.plan import BenchPlan, Level, Target
from specd.bench.prompts import SHIPPED, load_prompts
from specd.bench.workload import Mode, base_id, body, counted, warm_up
from specd.errors import BenchError

TARGET = Target(base_url="http://x", model="m")


def plan(**changes: object) -> BenchPlan:
    values: dict[str, object] = {
        "levels": (1, 4), "repeats": 3, "requests": 12, "prompts": "diverse", "max_tokens": 256, "temperature": 0.0,
        "warmup_requests": 4, "first_token_s": 9.0, "idle_s": 9.0,
    }  # fmt: skip
    return BenchPlan(**{**values, **changes})  # type: ignore[arg-type]


# -- shipped sets


@pytest.mark.parametrize("name", ["diverse", "quick"])
def test_shipped_sets(name: str) -> None:
    prompts = load_prompts(name)
    kinds = Counter(prompt.kind for prompt in prompts)
    assert set(kinds) == {"chat", "reasoning", "code", "extract", "edit", "translate", "agent"}
    assert len({json.dumps(prompt.messages) for prompt in prompts}) == len(prompts)
    assert len(prompts) == {"diverse": 60, "quick": 12}[name]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_set_loads_and_repeats_nothing(name: str) -> None:
    prompts = load_prompts(name)
    assert len(prompts) >= 6
    assert len({prompt.text for prompt in prompts}) == len({prompt.id for prompt in prompts}) == len(prompts)
    if name not in ("diverse", "quick"):
        assert {prompt.kind for prompt in prompts} == {name}


def test_long_prompts_are_long_and_begin_differently() -> None:
    prompts = load_prompts("long")
    sizes = sorted(len(prompt.text) for prompt in prompts)
    assert sizes[0] > 12_000
    assert sizes[-1] > 35_000
    assert len({prompt.text[:200] for prompt in prompts}) == len(prompts)
    assert all(prompt.text.count("--- Document 1 ---") == 1 and "\n\nTask: " in prompt.text for prompt in prompts)


@pytest.mark.parametrize(("name", "low", "high"), [("synthetic:512", 512, 512), ("synthetic:100-2000", 100, 2000)])
def test_synthetic_lengths(name: str, low: int, high: int) -> None:
    prompts = load_prompts(name)
    words = [len(prompt.text.split()) for prompt in prompts]
    assert (words[0], words[-1]) == (pytest.approx(low, rel=0.1), pytest.approx(high, rel=0.1))
    assert words == sorted(words)
    assert prompts == load_prompts(name)


@pytest.mark.parametrize("name", ["synthetic:0", "synthetic:9-3", "synthetic:", "synthetic:x"])
def test_synthetic_lengths_that_are_none(name: str) -> None:
    with pytest.raises(BenchError, match="synthetic"):
        load_prompts(name)


def test_lengths_of_the_diverse_set() -> None:
    sizes = sorted(sum(len(str(m["content"])) for m in p.messages) for p in load_prompts("diverse"))
    assert sizes[0] < 100
    assert 3500 < sizes[-1] < 6000
    assert sizes[len(sizes) // 2] > 300


# -- a user's own set


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "own.jsonl"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_own_set(tmp_path: Path) -> None:
    lines = [
        '\ufeff{"prompt": "Say\u2028hi", "id": "a"}',
        "",
        '{"messages": [{"role": "system", "content": "s"},'
        ' {"role": "user", "content": [{"type": "text", "text": "u"}]}]}',
    ]
    first, second = load_prompts(write(tmp_path, "\n".join(lines)))
    assert (first.id, first.messages) == ("a", ({"role": "user", "content": "Say\u2028hi"},))
    assert second.id == "line-3"
    assert second.with_prefix("P ")[0] == {"role": "system", "content": "P s"}
    assert second.flat("P ") == "P System: s\n\nUser: u\n\nAssistant:"


def test_prefix_goes_before_parts(tmp_path: Path) -> None:
    (prompt,) = load_prompts(
        write(tmp_path, '{"messages": [{"role": "user", "content": [{"type": "text", "text": "u"}]}]}')
    )
    content = prompt.with_prefix("P")[0]["content"]
    assert content == [{"type": "text", "text": "P"}, {"type": "text", "text": "u"}]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "Expecting property name"),
        ("[]", "expected a JSON object"),
        ("{}", 'needs either "messages" or "prompt"'),
        ('{"prompt": "a", "messages": []}', 'needs either "messages" or "prompt"'),
        ('{"prompt": " "}', '"prompt" must be a text that is not empty'),
        ('{"promt": "a"}', "unknown key 'promt'"),
        ('{"prompt": "a", "id": "x#2"}', '"id" must be a printable text'),
        ('{"prompt": "a", "kind": 3}', '"kind" must be a text'),
        ('{"messages": []}', '"messages" must be a list that is not empty'),
        ('{"messages": [{"role": "robot", "content": "a"}]}', 'message 1 needs a "role"'),
        ('{"messages": [{"role": "user"}]}', 'message 1 needs a "content"'),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "the last message is the assistant's"),
    ],
)
def test_bad_line_names_file_line_and_problem(tmp_path: Path, line: str, words: str) -> None:
    path = write(tmp_path, '{"prompt": "fine"}\n' + line)
    with pytest.raises(BenchError) as caught:
        load_prompts(path)
    assert f"{path}:2: " in str(caught.value)
    assert words in str(caught.value)


def test_all_bad_lines_at_once_but_not_endlessly(tmp_path: Path) -> None:
    with pytest.raises(BenchError) as caught:
        load_prompts(write(tmp_path, "x\n" * 20))
    assert str(caught.value).count("own.jsonl:") == 8
    assert "and 12 more" in str(caught.value)


def test_same_id_twice(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r":2: id 'a' is there already"):
        load_prompts(write(tmp_path, '{"prompt": "1", "id": "a"}\n{"prompt": "2", "id": "a"}'))


@pytest.mark.parametrize("name", ["nosuch", "./nosuch.jsonl", "empty", "latin"])
def test_sets_that_are_not_there(tmp_path: Path, name: str) -> None:
    if name == "empty":
        name = write(tmp_path, "\n\n")
    elif name == "latin":
        (tmp_path / "l.jsonl").write_bytes(b'{"prompt": "\xe4"}')
        name = str(tmp_path / "l.jsonl")
    with pytest.raises(BenchError, match="prompt set"):
        load_prompts(name)


# -- order and salts


def test_both_sides_send_the_same() -> None:
    prompts = load_prompts("diverse")
    for level in (Level(1, 1), Level(4, 2)):
        one = [body(work, plan(), TARGET, Mode()) for work in counted(prompts, plan(), level)]
        two = [body(work, plan(), TARGET, Mode()) for work in counted(load_prompts("diverse"), plan(), level)]
        assert one == two
        assert len(one) == 12


def test_repeats_meet_further_prompts_of_every_kind() -> None:
    prompts = load_prompts("diverse")
    seen = [[work.prompt for work in counted(prompts, plan(), Level(1, repeat))] for repeat in (1, 2, 3)]
    assert len({prompt.id for repeat in seen for prompt in repeat}) == 36
    for repeat in seen:
        assert len({prompt.kind for prompt in repeat}) == 7


def test_order_depends_on_the_seed_and_not_on_the_level() -> None:
    prompts = load_prompts("diverse")
    ids = [work.prompt_id for work in counted(prompts, plan(), Level(1, 1))]
    assert ids == [work.prompt_id for work in counted(prompts, plan(), Level(16, 1))]
    assert ids == [work.prompt_id for work in counted(prompts[::-1], plan(), Level(1, 1))]
    assert ids != [work.prompt_id for work in counted(prompts, plan(seed=1), Level(1, 1))]


def test_no_two_requests_of_a_side_begin_alike() -> None:
    prompts = load_prompts("quick")
    small = plan(requests=30)
    works = [work for level in (1, 4) for repeat in (1, 2) for work in counted(prompts, small, Level(level, repeat))]
    for level in (Level(0, 0), Level(1, 1), Level(4, 1)):
        works += [work for number in range(3) for work in warm_up(prompts, small, level, 5, number)]
    for mode in (Mode(), Mode("completions")):
        begins = []
        for work in works:
            sent = body(work, small, TARGET, mode)
            begins.append(sent["messages"][0]["content"][:12] if mode.endpoint == "chat" else sent["prompt"][:12])
        assert len(set(begins)) == len(works) == 4 * 30 + 3 * 15


def test_more_requests_than_prompts_stay_pairable() -> None:
    works = counted(load_prompts("quick"), plan(requests=30), Level(1, 1))
    assert len({work.prompt_id for work in works}) == 30
    assert Counter(base_id(work.prompt_id) for work in works).most_common(1)[0][1] == 3
    assert all(base_id(work.prompt_id) == work.prompt.id for work in works)


# -- bodies


def test_body() -> None:
    extra = {"top_p": 0.9, "stream": False, "model": "other", "n": 3, "temperature": 0.5}
    (work, *_) = counted(load_prompts("quick"), plan(), Level(1, 1))
    sent = body(work, plan(extra_body=extra), TARGET, Mode("chat", "running"))
    assert (sent["model"], sent["stream"], sent["top_p"], sent["temperature"]) == ("m", True, 0.9, 0.5)
    assert "n" not in sent
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body(work, plan(), TARGET, Mode("chat", "usage"))["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body(work, plan(), TARGET, Mode("chat", "none"))


# -- other forms


def test_sharegpt(tmp_path: Path) -> None:
    turns = [
        {"from": "gpt", "value": "left over"}, {"from": "human", "value": "a?"}, {"from": "gpt", "value": "a."},
        {"from": "human", "value": "b?"}, {"from": "gpt", "value": "b."},
    ]  # fmt: skip
    items = [{"id": "x", "conversations": turns, "lang": "en"}, {"id": "x", "conversations": turns[:1]}]
    path = tmp_path / "share.json"
    path.write_text(json.dumps(items))
    (prompt,) = load_prompts(str(path))
    assert prompt.messages == (
        {"role": "user", "content": "a?"}, {"role": "assistant", "content": "a."}, {"role": "user", "content": "b?"},
    )  # fmt: skip


def test_sharegpt_that_is_wrong_names_item_and_turn(tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    path.write_text(json.dumps([{"conversations": [{"from": "human", "value": "a"}, {"from": "moon", "value": "b"}]}]))
    with pytest.raises(BenchError, match=r"share.json: item 1: turn 2 needs"):
        load_prompts(str(path))


def test_tools_are_sent_in_a_chat_only(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    (prompt,) = load_prompts(write(tmp_path, json.dumps({"prompt": "Look.", "tools": [tool]})))
    (work, *_) = counted([prompt], plan(), Level(1, 1))
    assert body(work, plan(), TARGET, Mode())["tools"] == [tool]
    assert "tools" not in body(work, plan(), TARGET, Mode("completions"))


# -- mixes


def test_mix_keeps_its_weights_in_every_part() -> None:
    prompts = load_prompts({"chat": 3, "code": 1})
    for repeat in (1, 2, 3):
        works = counted(prompts, plan(requests=12), Level(1, repeat))
        kinds = Counter(work.prompt.kind for work in works)
        assert kinds == {"chat": 9, "code": 3}
    assert len({work.prompt_id for work in works}) == 12


def test_mix_of_a_file_and_a_set(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "mine", "id": "chat-01"}')
    prompts = load_prompts({path: 0.5, "chat": 0.5})
    assert {prompt.source for prompt in prompts} == {path, "chat"}
    assert len({prompt.id for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize("mix", [{}, {"chat": 0}, {"chat": -1.0, "code": 1}, {"moon": 1}])
def test_mixes_that_are_none(mix: dict[str, float]) -> None:
    with pytest.raises(BenchError):
        load_prompts(mix)
