from __future__ import annotations

import pytest
from small_models import model_of

from ortfuse.runtime.bench.typical_benchmark_inputs import typical_inputs
from ortfuse.runtime.inputs.broadcast_sizes import matched_sizes
from ortfuse.runtime.reference_runs import experiments

TABLE = "<float[23, 2] table = {" + ", ".join(["1"] * 46) + "}>"

BODIES = {
    "a sum": (f"agraph (float[b, s, 2] x) => (float[b, n, 2] y) {TABLE} {{ y = Add(x, table) }}", 23),
    "a product": (f"agraph (float[b, s] x) => (float[b, 2] y) {TABLE} {{ y = MatMul(x, table) }}", 23),
    "as many elements": (
        "agraph (float[b, s] x) => (float[23, d] y) <int64[2] t = {23, 1}> { r = Reshape(x, t) y = Relu(r) }",
        23,
    ),
    "a size that another is made of": (
        f"agraph (float[b, s, 2] x) => (float[b, n, 2] y) {TABLE} {{ j = Concat<axis=1>(x, x, e) y = Add(j, table) }}".replace(
            "x) =>", "x, float[b, 1, 2] e) =>"
        ),
        11,
    ),
}


@pytest.mark.parametrize("text", BODIES.values(), ids=BODIES)
def test_a_model_that_was_traced_runs_with_the_size_that_its_operators_need(text: tuple[str, int]) -> None:
    model = model_of(text[0])
    found, _ = experiments(model)
    assert text[1] in {one.inputs["x"].shape[1] for one in found}
    assert typical_inputs(model)[1]["x"].shape[1] == text[1]


def test_sizes_that_the_model_accepts_are_left_as_they_are() -> None:
    found, notes = experiments(model_of("agraph (float[s, 2] x, float[t, 2] z) => (float[n, 2] y) { y = Mul(x, x) }"))
    assert not notes
    assert [one.inputs["x"].shape[0] for one in found] == [1, 3, 2]


@pytest.mark.parametrize(("sizes", "fitted"), [({"s": 4}, 23), ({"s": 1}, 1), ({"s": 23}, 23), ({}, None)])
def test_only_a_size_that_is_known_and_does_not_match_is_changed(sizes: dict[str, int], fitted: int | None) -> None:
    model = model_of(f"agraph (float[s, 2] x) => (float[n, 2] y) {TABLE} {{ y = Add(x, table) }}")
    (matched,) = matched_sizes(model)
    assert matched.fitted(sizes, ["s"]).get("s") == fitted


def test_what_no_size_solves_is_left_as_it_is() -> None:
    """Twice a size is not 23."""
    text = f"agraph (float[s, 2] x) => (float[n, 2] y) {TABLE} {{ d = Concat<axis=0>(x, x) y = Add(d, table) }}"
    (matched,) = matched_sizes(model_of(text))
    assert matched.fitted({"s": 4}, ["s"]) == {"s": 4}
