"""Spellings that the runtime's own optimisations do no harm to; sessions are in a process of their own, which a crash would end."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import ops, parse, rewritten

import ortfuse
from ortfuse.verification import Session


def product(
    perm: str,
    shape: str,
    other: str,
    *,
    cast: bool = False,
    weight_first: bool = False,
    kind: str = "float16",
    opset: int = 20,
) -> ir.Model:
    """A product with a transposed operand, and another one with a float16 weight, for which the runtime optimises twice."""
    result = "float" if cast else kind
    operand = "c" if cast else "t"
    between = "c = Cast <to = 1> (t)" if cast else ""
    return parse(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        g ({kind}[{shape}] x, {result}[{other}] w, float16[n, 1] p) => ({result} y, float16 q)
        <float16[1, 1] one = {{1}}>
        {{
            t = Transpose <perm = [{perm}]> (x)
            {between}
            y = MatMul ({f"w, {operand}" if weight_first else f"{operand}, w"})
            q = MatMul (p, one)
        }}
    """)


FORMS = {
    "rows to the front": product("1, 0, 2", "a, b, 4", "4, 3"),
    "both moved": product("1, 2, 0", "4, a, b", "4, 3"),
    "static": product("1, 0, 2", "2, 3, 4", "4, 3"),
    "a vector": product("1, 0, 2", "a, b, 4", "4"),
    "four axes": product("1, 2, 0, 3", "a, b, c, 4", "4, 3"),
    "more axes than the transposed operand": product("1, 0, 2", "a, b, 4", "2, 1, 4, 3"),
    "on the right": product("1, 0, 2", "4, a, b", "3, 4", weight_first=True),
    "a cast": product("1, 0, 2", "a, b, 4", "4, 3", cast=True),
    "a cast from float64": product("1, 0, 2", "a, b, 4", "4, 3", cast=True, kind="double"),
    "axes as attributes": product("1, 0, 2", "a, b, 4", "4, 3", opset=11),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_runtime_loads_a_product_that_it_crashed_on(form: str) -> None:
    Session(ortfuse.optimize(FORMS[form].clone()).model)


@pytest.mark.parametrize("form", FORMS)
def test_the_other_spelling_has_the_same_bits(form: str) -> None:
    before = FORMS[form]
    after = rewritten(before, "fuse.runtime")
    assert "Unsqueeze Transpose Squeeze" in ops(after)
    rng = np.random.default_rng(0)
    sizes = {"a": 2, "b": 3, "c": 5, "n": 2}
    inputs = {
        value.name: rng.standard_normal([sizes.get(str(dim), dim) for dim in value.shape or ()]).astype(
            value.dtype.numpy() if value.dtype else None
        )
        for value in before.graph.inputs
    }
    old, new = (Session(model, optimise=False, threads=1).run(inputs) for model in (before, after))
    assert all(old[name].tobytes() == new[name].tobytes() and old[name].shape == new[name].shape for name in old)


@pytest.mark.parametrize(
    "model",
    [
        product("1, 0, 2", "a, b, 4", "4, 3", kind="float"),
        product("1, 0, 2", "a, b, 4", "b, 4, 3"),
        product("0, 2, 1", "a, 4, b", "4, 3"),
        product("2, 1, 0", "4, a, b", "4, 3"),
    ],
    ids=["float32", "operands of one rank", "only the last two axes", "all axes reversed"],
)
def test_what_the_runtime_does_not_crash_on_stays(model: ir.Model) -> None:
    assert "Unsqueeze" not in ops(rewritten(model, "fuse.runtime"))
