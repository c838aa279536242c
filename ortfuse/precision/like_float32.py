"""Models in half precision, run on what their float32 originals take.

Where the runtime has no kernels for bfloat16, the model is imitated: in float32, with every value rounded that is bfloat16. The
sums within an operator are more accurate then than some hardware's.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.execution.as_it_is import Runnable, signature_of
from ortfuse.execution.inputs import Inputs
from ortfuse.execution.session import Arrays, Session
from ortfuse.facts.facts import Facts
from ortfuse.graph import walk
from ortfuse.graph.functions import without_functions

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_IMITATED = "the runtime does not execute the bfloat16 of the second model: it was run in float32, rounded to that"


class LikeFloat32:
    """A session of a model that takes and gives float32 where its original does.

    Attributes:
        notes: What is to be known about how it was run.
    """

    def __init__(self, original: Runnable, other: Runnable) -> None:
        """Load `other`, or what imitates it.

        Raises:
            VerificationError: The runtime refuses the model.
        """
        self.notes: list[str] = []
        try:
            self._session = Session(other)
        except VerificationError:
            imitated = imitation(other) if isinstance(other, ir.Model) else None
            if imitated is None:
                raise
            other, self.notes = imitated, [_IMITATED]
            self._session = Session(imitated, optimise=False)
        before, after = signature_of(original).graph, signature_of(other).graph
        self._takes = {
            old.name: new.dtype.numpy()
            for old, new in zip(before.inputs, after.inputs, strict=True)
            if old.dtype == ir.DataType.FLOAT and new.dtype is not None and new.dtype in _HALVES
        }
        self._widens = {
            old.name
            for old, new in zip(before.outputs, after.outputs, strict=True)
            if old.dtype == ir.DataType.FLOAT and new.dtype in _HALVES
        }

    def run(self, inputs: Inputs) -> Arrays:
        """The outputs by name."""
        given = {name: one.astype(self._takes[name]) if name in self._takes else one for name, one in inputs.items()}
        found = self._session.run(given)
        return {name: one.astype(np.float32) if name in self._widens else one for name, one in found.items()}


def imitation(model: ir.Model) -> ir.Model | None:
    """A copy with float32 for bfloat16, rounded where it is computed; `None` if there is none, or functions cannot be inlined."""
    copy = without_functions(model) if model.functions else model.clone()
    if copy is None:
        return None
    facts, graphs = Facts(copy), list(walk.graphs(copy))
    values = [value for graph in graphs for value in walk.own_values(graph)]
    narrow = {value for value in values if facts.dtype(value) == ir.DataType.BFLOAT16}
    names = (f"rounded.{number}" for number in itertools.count())
    fresh = (name for name in names if name not in {value.name for value in values})
    for graph in graphs:
        for node in graph:
            _name_float32(node)
    for value in narrow:
        value.type = ir.TensorType(ir.DataType.FLOAT)
        if value.const_value is not None:
            value.const_value = ir.Tensor(value.const_value.numpy().astype(np.float32), name=value.name)
    for value in values:
        is_computed = value.producer() is not None or any(value is given for given in copy.graph.inputs)
        if value in narrow and is_computed:
            _round(value, next(fresh), next(fresh))
    return copy if narrow else None


def _name_float32(node: ir.Node) -> None:
    """Let attributes that name bfloat16, or hold such numbers, name float32."""
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == ir.DataType.BFLOAT16:
            node.attributes[name] = ir.AttrTensor(name, ir.Tensor(attribute.value.numpy().astype(np.float32)))
        elif name in _TYPES and attribute.value == int(ir.DataType.BFLOAT16):
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


_TYPES = frozenset({"to", "dtype", "output_datatype", "output_dtype"})


def _round(value: ir.Value, narrow: str, before: str) -> None:
    """Round a value to bfloat16 for whatever uses it. An output of a graph keeps its name."""
    graph, producer = value.graph, value.producer()
    assert isinstance(graph, ir.Graph)
    uses = list(value.uses())
    there = ir.node("Cast", [value], {"to": int(ir.DataType.BFLOAT16)})
    back = ir.node("Cast", there.outputs, {"to": int(ir.DataType.FLOAT)})
    there.outputs[0].name, back.outputs[0].name = narrow, before
    there.outputs[0].type, back.outputs[0].type = ir.TensorType(ir.DataType.BFLOAT16), ir.TensorType(ir.DataType.FLOAT)
    back.outputs[0].shape = value.shape
    if producer is not None:
        graph.insert_after(producer, [there, back])
    elif len(graph):
        graph.insert_before(graph[0], [there, back])
    else:
        graph.extend([there, back])
    for use in uses:
        use.node.replace_input_with(use.idx, back.outputs[0])
    places = [number for number, output in enumerate(graph.outputs) if output is value]
    if places and producer is not None:
        value.name, back.outputs[0].name = before, value.name
    for number in places:
        graph.outputs[number] = back.outputs[0]
