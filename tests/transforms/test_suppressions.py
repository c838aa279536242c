"""Suppressions class by class, as loops over classes leave them, become one of all classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import operators
from rewriting import ops
from small_models import apply, floats, model_of

import ortfuse
from ortfuse.transforms import BatchNonMaxSuppression, DeadCodeElimination

CLASS = """g{0} = Gather<axis=1>(scores, c{0}) u{0} = Unsqueeze(g{0}, two)
    n{0} = NonMaxSuppression(batch, u{0}, most, overlap, least) t{0} = Gather<axis=1>(n{0}, last) k{0} = Squeeze(t{0}, one)
    b{0} = Gather(boxes, k{0}) s{0} = Gather(g{0}, k{0}) h{0} = Shape(k{0}) l{0} = Expand(c{0}, h{0})"""
JOINED = "yb = Concat<axis=0>(b0, b1, b2) ys = Concat<axis=0>(s0, s1, s2) yl = Concat<axis=0>(l0, l1, l2)"
INPUTS: dict[str, Any] = {
    "boxes": np.sort(np.random.default_rng(0).random((9, 4), np.float32) * 4, axis=1)[:, [0, 2, 1, 3]],
    "scores": np.abs(floats(9, 3)),
}


def text(classes: str | None = None, joined: str = JOINED, outputs: str = "float[p,4] yb, float[q] ys, int64[r] yl",
         boxes: str = "n,4") -> str:  # fmt: skip
    """A loop over three classes, unrolled."""
    body = " ".join(CLASS.format(number) for number in range(3)) if classes is None else classes
    return f"""<ir_version: 9, opset_import: ["": 17]> g (float[{boxes}] boxes, float[n,3] scores) => ({outputs})
        <int64 c0 = {{0}}, int64 c1 = {{1}}, int64 c2 = {{2}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[2] two = {{0, 1}},
         int64[1] last = {{2}}, int64[1] most = {{4}}, float[1] overlap = {{0.3}}, float[1] least = {{0.1}}, float[1] higher = {{0.4}}>
        {{ batch = Unsqueeze(boxes, zero) {body} {joined} }}"""


def test_a_loop_over_classes_is_one_suppression() -> None:
    model, counts, _ = apply(text(), BatchNonMaxSuppression(), DeadCodeElimination(), inputs=INPUTS)
    assert counts[0] == 3
    assert operators(model).count("NonMaxSuppression") == 1
    after = ops(ortfuse.optimize(model_of(text())).model)
    assert after.count("NonMaxSuppression") == 1
    assert len(after.split()) <= 12


def test_numbers_that_are_reshaped_to_a_vector_are_those_of_all_classes() -> None:
    written = text().replace("int64[1] zero", "int64[1] minus = {-1}, int64[1] zero")
    for number in range(3):
        written = written.replace(f"Squeeze(t{number}, one)", f"Reshape(t{number}, minus)")
    model, counts, _ = apply(written, BatchNonMaxSuppression(), DeadCodeElimination(), inputs=INPUTS)
    assert counts[0] == 3
    assert operators(model).count("NonMaxSuppression") == 1


ROWS = "f{0} = Cast<to=1>(l{0}) fu{0} = Unsqueeze(f{0}, one) {1} su{0} = Unsqueeze(q{0}, one) d{0} = Concat<axis={2}>(b{0}, su{0}, fu{0})"
ROW_JOIN = "yd = Concat<axis=0>(d0, d1, d2)"


@pytest.mark.parametrize(
    ("scaled", "axis", "merged"),
    [
        ("q{0} = Mul(s{0}, overlap)", 1, True),
        ("r{0} = Sqrt(s{0}) q{0} = Sub(overlap, r{0})", -1, True),
        ("q{0} = Mul(s{0}, w{0})", 1, False),
        ("q{0} = CumSum(s{0}, c0)", 1, False),
    ],
)
def test_rows_of_boxes_scores_and_labels_are_made_for_all_classes(scaled: str, axis: int, merged: bool) -> None:
    rows = " ".join(ROWS.format(number, scaled.format(number), axis) for number in range(3))
    body = " ".join(CLASS.format(number) for number in range(3)) + " " + rows
    factors = ", ".join(f"float[1] w{number} = {{{number + 1}.5}}" for number in range(3))
    written = text(body, ROW_JOIN, "float[p,6] yd").replace("int64[1] zero", factors + ", int64[1] zero")
    model, _, _ = apply(written, BatchNonMaxSuppression(), DeadCodeElimination(), inputs=INPUTS)
    assert (operators(model).count("NonMaxSuppression") == 1) is merged


def test_scores_with_an_axis_of_their_own_are_taken_for_all_classes() -> None:
    written = text()
    for number in range(3):
        picked = f"x{number} = Unsqueeze(g{number}, one) z{number} = Gather(x{number}, k{number}) s{number} = Squeeze(z{number}, one)"
        written = written.replace(f"s{number} = Gather(g{number}, k{number})", picked)
    model, _, _ = apply(written, BatchNonMaxSuppression(), DeadCodeElimination(), inputs=INPUTS)
    assert operators(model).count("NonMaxSuppression") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Concat<axis=0>(b0, b1, b2)", "Concat<axis=0>(b1, b0, b2)"),
        ("Concat<axis=0>(b0, b1, b2)", "Concat<axis=0>(b0, b1, b1)"),
        ("ys = Concat<axis=0>(s0, s1, s2)", "ys = Concat<axis=0>(s0, s1)"),
        (
            "n1 = NonMaxSuppression(batch, u1, most, overlap, least)",
            "n1 = NonMaxSuppression(batch, u1, most, overlap, higher)",
        ),
        ("t2 = Gather<axis=1>(n2, last)", "t2 = Gather<axis=1>(n2, one)"),
        ("u2 = Unsqueeze(g2, two)", "v2 = Neg(g2) u2 = Unsqueeze(v2, two)"),
    ],
)
def test_what_is_joined_otherwise_stays_what_it_was(old: str, new: str) -> None:
    written = text()
    assert old in written
    apply(written.replace(old, new), BatchNonMaxSuppression(), DeadCodeElimination(), inputs=INPUTS)


@pytest.mark.parametrize(
    ("joined", "outputs"),
    [
        ("yb = Concat<axis=0>(b0, b1, b2) ys = Identity(s0) yl = Concat<axis=0>(l0, l1, l2)", None),
        (JOINED + " z = Shape(k1)", "float[p,4] yb, float[q] ys, int64[r] yl, int64[1] z"),
        ("yb = Concat<axis=0>(b1, b0, b2) ys = Concat<axis=0>(s0, s1, s2) yl = Concat<axis=0>(l0, l1, l2)", None),
    ],
)
def test_what_is_used_otherwise_too_is_left_alone(joined: str, outputs: str | None) -> None:
    written = text(joined=joined, **({"outputs": outputs} if outputs else {}))
    model, counts, _ = apply(written, BatchNonMaxSuppression())
    assert counts == [0]
    assert operators(model) == operators(model_of(written))


def test_boxes_of_several_images_are_left_alone() -> None:
    batch = "n{0} = NonMaxSuppression(boxes, u{0}, most, overlap, least) t{0} = Gather<axis=1>(n{0}, last) k{0} = Squeeze(t{0}, one)"
    written = f"""<ir_version: 9, opset_import: ["": 17]> g (float[b,n,4] boxes, float[b,1,n] u0, float[b,1,n] u1) => (int64[k] y)
        <int64[1] one = {{1}}, int64[1] last = {{2}}, int64[1] most = {{4}}, float[1] overlap = {{0.3}}, float[1] least = {{0.1}}>
        {{ {batch.format(0)} {batch.format(1)} y = Concat<axis=0>(k0, k1) }}"""
    _, counts, _ = apply(written, BatchNonMaxSuppression())
    assert counts == [0]
