from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortfuse.errors import PipelineError
from ortfuse.pipeline.pipeline_text import Call, FixpointCall, Pipeline, parse


def test_items_options_and_fixpoints_are_read() -> None:
    text = 'canonicalize, fold{max_growth=1048576, a=-1.5, b=true, c="x, y"}, fixpoint{max_rounds=3}(cse, fixpoint(dce)), fuse.*'
    assert parse(text) == Pipeline(
        (
            Call("canonicalize"),
            Call("fold", {"max_growth": 1048576, "a": -1.5, "b": True, "c": "x, y"}),
            FixpointCall((Call("cse"), FixpointCall((Call("dce"),)))  , {"max_rounds": 3}),
            Call("fuse.*"),
        )
    )  # fmt: skip
    assert str(parse(text)) == text
    assert parse("") == Pipeline(())
    assert parse(" fold\n,\n  dce ") == parse("fold, dce")


_names = st.from_regex(r"[A-Za-z_][\w\-]{0,5}(\.[\w\-]{1,4}){0,2}", fullmatch=True).filter(
    lambda name: name != "fixpoint"
)
_values = (
    st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
_options = st.dictionaries(_names, _values, max_size=3)
_items = st.recursive(
    st.builds(Call, _names, _options),
    lambda inner: st.builds(FixpointCall, st.lists(inner, min_size=1, max_size=3).map(tuple), _options),
    max_leaves=6,
)


@given(st.lists(_items, max_size=4).map(tuple).map(Pipeline))
def test_what_is_printed_is_read_back(pipeline: Pipeline) -> None:
    assert parse(str(pipeline)) == pipeline


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fold,", "expected the name of a pass"),
        ("fold cse", "expected a comma"),
        ("fixpoint", "expected the passes to repeat"),
        ("fixpoint()", "expected the name of a pass"),
        ("fixpoint(fold", r"expected '\)'"),
        ("fold(cse)", "fold takes no parentheses"),
        ("fold{a}", "expected '='"),
        ("fold{a=b}", "expected a number"),
        ("fold{a=1, a=2}", "another option"),
        ("fold{a=1", "expected ','"),
        ("fold{a=1e999}", "expected a number"),
        ("fixpoint(fold){max_rounds=1}", "options stand before the parentheses"),
        ("fold; cse", "unexpected ';'"),
        ("fixpoint(" * 50, "nested too deeply"),
    ],
)
def test_mistakes_are_shown_where_they_are(text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message) as error:
        parse(text)
    assert "▸" in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("text", "shown"),
    [("fold; cse", "fold▸; cse"), ("fold cse", "fold ▸cse"), ("fold,", "fold,▸"), ("fold,\n\n  (", "fold, ▸(")],
)
def test_the_place_of_a_mistake_is_marked(text: str, shown: str) -> None:
    with pytest.raises(PipelineError) as error:
        parse(text)
    assert str(error.value).endswith(f"at the mark in: {shown}")


def test_a_text_that_is_too_long_is_an_error_at_once() -> None:
    with pytest.raises(PipelineError, match="characters"):
        parse("fold," * 1_000_000)
