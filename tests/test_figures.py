"""The figures that documents quote, and the picture, are those of the stored results."""

from __future__ import annotations

from docs import figures, picture


def test_documents_quote_what_is_stored() -> None:
    for path in figures.documents():
        assert figures.renewed(path.read_text()) == path.read_text(), f"{path.name}: run python docs/figures.py"


def test_the_picture_is_drawn_from_what_is_stored() -> None:
    assert picture.main(check=True) == 0


def test_every_figure_stands_in_some_document() -> None:
    text = "".join(path.read_text() for path in figures.documents())
    assert all(f"<!-- figures: {name} -->" in text for name in figures.MADE)
