"""Small models as text, rewritten by the rules of one pass whatever they cost, and compared on chosen inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.editor import Editor
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Exactness, Rewriter
from ortfuse.targets import Target, raise_opset
from ortfuse.transforms import ComposeLinearMaps, DeadCodeElimination
from ortfuse.transforms.context import Context
from ortfuse.verification import Session


def parse(text: str) -> ir.Model:
    """A model of ONNX text."""
    proto = onnx.parser.parse_model(text)
    onnx.checker.check_model(proto)
    return ir.from_proto(proto)


def rewritten(model: ir.Model, name: str, approximate: bool = False) -> ir.Model:
    """A copy of `model` after the rules of the pass `name`, also those left out for their cost, but none made on request."""
    copy = model.clone()
    rules = [
        rule
        for rule in load_catalogue([]).passes()[name]
        if not rule.on_request and (approximate or rule.exactness is not Exactness.APPROXIMATE)
    ]
    Rewriter(Editor(copy, Facts(copy)), Target()).run(rules)
    needed = max((node.version or 0 for node in copy.graph if not node.domain), default=0)
    raise_opset(copy, max(needed, copy.graph.opset_imports[""]))
    return copy


def composed(model: ir.Model) -> ir.Model:
    """A copy of `model` after linear maps were composed."""
    copy = model.clone()
    context = Context(copy, Facts(copy), Target())
    for one in (ComposeLinearMaps(), DeadCodeElimination()):
        one.run(context)
    return copy


def ops(model: ir.Model) -> str:
    """The operators of the main graph in order, in one line."""
    return " ".join(node.op_type for node in model.graph if node.op_type != "Constant")


def both(before: ir.Model, after: ir.Model, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """The first output of either model, without the runtime's own optimisations."""
    first, second = (
        next(iter(Session(model, optimise=False, threads=1).run(dict(inputs)).values())) for model in (before, after)
    )
    return first, second


def same(before: ir.Model, after: ir.Model, inputs: Mapping[str, Any]) -> None:
    """Both give NaN and infinities at the same places, and finite numbers that differ by rounding alone."""
    old, new = both(before, after, inputs)
    np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-6)
