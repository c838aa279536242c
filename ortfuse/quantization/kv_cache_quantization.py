"""Quantise the key and value caches of a decoder to 8-bit integers.

The rules of the pass `precision.kv_cache` insert the integers at the attention operators. They then replace the float32
inputs and outputs of the model. The scales are kept in its metadata (`ortfuse.runtime.int8_kv_caches`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import RewriteError
from ortfuse.ir.traits import MICROSOFT
from ortfuse.ir.walk import describe
from ortfuse.pipeline import load_catalogue
from ortfuse.quantization.calibration import COLUMNS, Calibration, calibrate
from ortfuse.quantization.shared_ranges import ranges_of
from ortfuse.rewrite import Log, Rewriter
from ortfuse.rewrite.pattern.match_result import Ranges
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.int8_kv_caches import Cache, write_caches
from ortfuse.runtime.session import Arrays
from ortfuse.targets import Target, installed
from ortfuse.transforms import CommonSubexpressionElimination, Context, DeadCodeElimination, Finalize

PASS = "precision.kv_cache"

OPERATOR = "GroupQueryAttention"

ONE_SEQUENCE = "behind a cache that is not empty, several tokens at once are computed for a batch of 1 alone"
"""The cases that the kernel does not support."""

TOKENS = 100_000
"""So many keys and values are to lie within the range that is expected of what was seen of few."""

FEWEST = 8
"""With fewer, no gain is expected."""

_KEYS, _VALUES, _PASTS = (1, 2), (4, 5), (3, 4)
_BEHIND = 9
"""How far behind the caches the operator has their scales."""


@dataclass(frozen=True)
class Cached:
    """A model whose caches are integers.

    Attributes:
        model: The model.
        caches: The caches.
        operators: How many operators read and write them.
        left: Why others stay float32, by the name of what they compute.
        token_bytes: What a token takes in these caches, in bytes: in float32, and now.
    """

    model: ir.Model = field(repr=False)
    caches: tuple[Cache, ...]
    operators: int
    left: Mapping[str, str]
    token_bytes: tuple[int, int]


def in_int8(model: ir.Model, inputs: Sequence[Inputs], target: Target | None = None) -> Cached:
    """Make the caches of a decoder integers.

    Args:
        model: The model, with attention as an operator, as `ortfuse.optimize` makes it; not changed.
        inputs: Sets of inputs, on which the largest number of each channel is looked for.
        target: What executes the result.

    Raises:
        RewriteError: The model has no attention with a cache, or none of it can be computed so.
        PrecisionError: Keys or values are infinite or not numbers on these inputs.
        VerificationError: The model cannot be run on them.
    """
    attending = [node for node in model.graph if _has_cache(node)]
    if not attending:
        raise RewriteError(
            "the model has no attention operator with past keys and values: optimise it first (`ortfuse optimize`), and export "
            "it with its caches as inputs and outputs, the keys and values of a layer with one name for their length"
        )
    names = [node.inputs[index].name for node in attending for index in (*_KEYS, *_VALUES)]  # type: ignore[union-attr]
    calibration = calibrate(model, dict.fromkeys(name for name in names if name), inputs)
    left = {node.outputs[0].name or "": why for node in attending if (why := _used_otherwise(node))}
    copy = model.clone()
    target = (target or installed()).with_documented_limits(MICROSOFT, OPERATOR)
    context, log = Context(copy, Facts(copy), target), Log(explain=True)
    Rewriter(
        context.editor, target, log, ranges=_with_headroom(ranges_of(copy.graph, calibration, {}), calibration),
        where=lambda rule, root: (root.name or "") not in left,
    ).run(load_catalogue().passes()[PASS])  # fmt: skip
    done = {event.site for event in log.events}
    CommonSubexpressionElimination().run(context)
    left = {
        name: left.get(name) or _why(name, log)
        for node in attending
        if (name := node.outputs[0].name or "") not in done
    }
    if not done:
        name, why = next(iter(left.items()))
        raise RewriteError(f"no cache can be 8-bit integers: '{name}': {why}")
    caches = tuple(_exposed(context.model.graph))
    write_caches(context.model, caches)
    for last in (DeadCodeElimination(), Finalize()):
        last.run(Context(context.model, Facts(context.model), target))
    count = sum(one.heads * len(one.scales) for one in caches)
    return Cached(context.model, caches, len(done), left, (4 * count, count))


def in_float32(outputs: Arrays, caches: Sequence[Cache]) -> Arrays:
    """The outputs of a model with caches of integers, with caches in float32."""
    return {**outputs, **{one.present: one.widened(outputs[one.present]) for one in caches}}


def _has_cache(node: ir.Node) -> bool:
    given = node.inputs[_VALUES[0] : _VALUES[1] + 1]
    return node.op_type == "Attention" and not node.domain and len(given) == 2 and None not in given


def _why(name: str, log: Log) -> str:
    misses = [miss for (_, site), miss in log.misses.items() if site == name]
    closest = max(misses, key=lambda miss: (miss.step == "guards", miss.matched), default=None)
    return "it is not spelled as the rules want it" if closest is None else closest.refusal.reason


def _with_headroom(ranges: Ranges, calibration: Calibration) -> Ranges:
    """The same, but sizes are those that are expected of `TOKENS` rows: what is cut off costs far more than wider steps.

    The largest of n normal numbers is near the root of 2 ln n, in units of their standard deviation.
    """

    def found(name: str, method: str) -> object:
        known = ranges(name, method)
        if known is None or method != COLUMNS:
            return known
        rows = calibration.seen[name].counts.sum() / len(known)
        headroom = max(1.0, math.sqrt(math.log(TOKENS) / math.log(max(rows, FEWEST))))
        return tuple(headroom * size for size in known)

    return found


def _used_otherwise(node: ir.Node) -> str:
    """Why the caches of an operator cannot be integers for whoever runs the model; empty if they can."""
    for index in _VALUES:
        past, present = node.inputs[index], node.outputs[index - 3] if len(node.outputs) > index - 3 else None
        assert past is not None
        if not past.is_graph_input():
            return f"'{past.name}' is no input of the model"
        other = next((use.node for use in past.uses() if use.node is not node and use.node.op_type != "Shape"), None)
        if other is not None:
            return f"'{past.name}' is used by {describe(other)}, too"
        if present is None or not present.is_graph_output():
            return f"'{past.name}' with what is new is no output of the model"
        if present.uses():
            return f"'{present.name}' is used by {describe(next(iter(present.uses())).node)}, too"
    return ""


def _exposed(graph: ir.Graph) -> Iterator[Cache]:
    """Let the model take and give the integers themselves; yields the caches."""
    for node in [node for node in graph if node.op_type == OPERATOR and node.domain == MICROSOFT]:
        for index in _PASTS:
            rounded, present = node.inputs[index], node.outputs[index - 2]
            rounds = None if rounded is None else rounded.producer()
            if rounds is None or rounds.op_type != "QuantizeLinear":
                continue  # it was there before
            past, scales = rounds.inputs[0], rounds.inputs[1]
            assert past is not None
            assert scales is not None
            assert scales.const_value is not None
            past.type = ir.TensorType(ir.DataType.INT8)
            rounds.outputs[0].replace_all_uses_with(past)
            graph.remove(rounds, safe=True)
            (use,) = present.uses()
            given = use.node.outputs[0]
            graph.outputs[list(graph.outputs).index(given)] = present
            graph.remove(use.node, safe=True)
            present.name, given.name = given.name, None
            present.type, present.shape = ir.TensorType(ir.DataType.INT8), given.shape
            steps, all_of_them = scales.const_value.numpy(), node.inputs[index + _BEHIND]
            heads = (
                1 if all_of_them is None or all_of_them.shape is None else all_of_them.shape.numpy()[0] // steps.size
            )
            yield Cache(past.name or "", present.name or "", tuple(steps.tolist()), heads)
