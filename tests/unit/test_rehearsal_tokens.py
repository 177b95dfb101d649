"""The toy tokenizer can be reversed, and the engine's text is made of its words."""

from hypothesis import given
from hypothesis import strategies as st

from specd.rehearsal.tokens import Babble, Story, decode, encode, prompt_key


@given(st.text())
def test_any_text_survives(text: str) -> None:
    assert decode(encode(text)) == text


@given(st.integers(0, 2**64 - 1), st.integers(1, 300))
def test_generated_text_has_one_token_a_word(key: int, count: int) -> None:
    story = Story(key)
    ids = [story.token(index) for index in range(count)]
    assert encode(decode(ids)) == ids


def test_english_costs_about_a_token_a_word() -> None:
    prompt = "Please explain how a small language model reads the first sentence of a story."
    assert len(prompt.split()) <= len(encode(prompt)) <= 2 * len(prompt.split())


def test_stories_differ_by_prompt_and_do_not_loop() -> None:
    texts = {decode([Story(prompt_key(encode(prompt))).token(i) for i in range(200)]) for prompt in ("a", "b", "c")}
    assert len(texts) == 3
    for text in texts:
        sentences = text.split(". ")
        assert len(set(sentences)) == len(sentences)


def test_unknown_ids_become_replacement_characters() -> None:
    assert decode([10**15, -1]) == "��"


def test_babble_loops() -> None:
    loop = Babble(3, "loop")
    assert len({loop.token(index) for index in range(50)}) == 1
    assert decode([Babble(3, "replacement").token(0)]) == "�"
