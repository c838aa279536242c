"""One operator at a time: the facts it should give, held against the runtime for several sizes of the symbols."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from op_cases import CASES, Case
from soundness import judge_model, strict_transfer

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import Dim

pytestmark = pytest.mark.usefixtures(strict_transfer.__name__)


def described(facts: Facts, value: ir.Value, wanted: str) -> str:
    """The shape or the integers of a value, written as in the table of cases."""
    if not wanted.startswith("="):
        shape = facts.shape(value)
        return "rank unknown" if shape is None else ", ".join(_text(dim) for dim in shape)
    ints = facts.ints(value)
    return "no integers" if ints is None else "= " + ", ".join(_text(element) for element in ints.elements)


def _text(dim: object) -> str:
    return "?" if dim is None or (isinstance(dim, Dim) and dim.fresh) else str(dim)


def random_inputs(proto: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    inputs = {}
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        inputs[value.name] = generator.integers(1, 5, shape).astype(dtype)
    return inputs


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator(case: Case) -> None:
    proto = case.model()
    model = ir.from_proto(proto)
    facts = Facts(model)
    values = {value.name: value for node in model.graph for value in node.outputs}
    found = {name: described(facts, values[name], wanted) for name, wanted in case.gives.items()}
    assert found == case.gives
    for sizes in case.sizes if case.runs else ():
        judge = judge_model(proto, facts, model, random_inputs(proto, sizes), sizes)
        assert not judge.wrong, f"{sizes}: " + "; ".join(judge.wrong)
