from __future__ import annotations

import pytest
from small_models import model_of

from ortfuse.runtime.inputs.concat_sizes import joined_sizes
from ortfuse.runtime.reference_runs import experiments

HALVES = """agraph (float[n, h] x) => (float[m, g] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {9223372036854775807}> {
    a = Slice(x, zero, end, one, two) b = Slice(x, one, end, one, two) y = Concat<axis=0>(a, b) }"""


@pytest.mark.parametrize(("sizes", "fit"), [((3, 1), False), ((3, 4), True), ((3, 5), False), ((0, 5), True)])
def test_sizes_for_which_what_is_joined_is_not_alike_are_told(sizes: tuple[int, int], fit: bool) -> None:
    (joined,) = joined_sizes(model_of(HALVES))
    assert joined.allows(dict(zip("nh", sizes, strict=True))) is fit


def test_a_size_that_is_not_known_forbids_nothing() -> None:
    (joined,) = joined_sizes(model_of(HALVES))
    assert joined.allows({"n": 3})


def test_what_is_known_to_be_alike_and_other_ranks_demand_nothing() -> None:
    text = "agraph (float[n, h] x, float[k, h] z) => (float[m, h] y) { y = Concat<axis=0>(x, z) }"
    assert not joined_sizes(model_of(text))


def test_no_experiment_has_elements_that_nothing_computes() -> None:
    """Of one column, the second half is empty: the runtime leaves it out, and the first is as large as the result."""
    found, notes = experiments(model_of(HALVES))
    assert all(not one.inputs["x"].shape[1] % 2 for one in found)
    assert any("tensors that are joined" in note for note in notes)
