"""The page in the docs is what the table gives today."""

from pathlib import Path

from states.diagram import document
from states.table import State

_PAGE = Path(__file__).parents[2] / "docs" / "states.md"


def test_the_docs_page_is_the_tables() -> None:
    assert _PAGE.read_text() == document(), "run `make docs`"


def test_every_state_is_on_the_page() -> None:
    page = document()
    assert all(f"`{state.value}`" in page for state in State)
