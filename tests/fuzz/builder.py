"""A model under construction whose every value is known: each node is executed as soon as it is added.

So a generator may try any operator on any operands; what ONNX Runtime refuses is taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from .old_forms import in_old_form

Array = np.ndarray[Any, Any]
T = TypeVar("T")

SIZES = {"b": 2, "s": 3, "t": 5, "n": 1, "z": 0}
"""The symbols that dimensions of inputs may have, and their sizes while the model is built."""

_MOST_ELEMENTS = 4096
_LARGEST = 1e4
_MOVES = frozenset(
    [
        "Identity",
        "Transpose",
        "Reshape",
        "Slice",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Concat",
        "Split",
        "Tile",
        "Pad",
        "Expand",
        "Gather",
        "GatherND",
        "Cast",
        "Where",
        "ScatterND",
        "DepthToSpace",
        "SpaceToDepth",
        "Max",
        "Min",
        "Neg",
        "Abs",
        "Relu",
        "Clip",
        "Shape",
        "Size",
        "Compress",
        "Trilu",
        "If",
        "Loop",
        "GatherElements",
        "Dropout",
        "CastLike",
        "SequenceAt",
        "ConcatFromSequence",
        "ReduceMax",
        "ReduceMin",
        "ReverseSequence",
        "MaxPool",
    ]
)
"""Operators that do not round: what follows a jump (a comparison, a Floor) must come from them alone."""


class RefusedError(Exception):
    """What was tried is not a valid model, or not one worth having."""


@dataclass(frozen=True, eq=False)
class Value:
    """A value by name, what it is for the inputs at hand (None if numpy cannot hold it), and whether it is unrounded."""

    name: str
    array: Array | None
    exact: bool = True

    @property
    def known(self) -> Array:
        """The array, of a value that has one."""
        assert self.array is not None
        return self.array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape for the inputs at hand."""
        return self.known.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self.known.dtype


@dataclass(frozen=True)
class Input:
    """A graph input: its dimensions (numbers or symbols) and what it is filled with."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[int | str, ...]
    kind: str
    seed: int
    declared: str = "all"

    def make(self, sizes: dict[str, int]) -> Array:
        """An array for the given sizes."""
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in self.dims]
        return fill(self.kind, shape, self.dtype, np.random.default_rng(self.seed))


_SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-7, -1e-40, 1e4, -1e4, 65504.0, 1.0)


def fill(kind: str, shape: Sequence[int], dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    """Random numbers that fit what an input is for: `plain`, `index` (0 or 1), `mask` (rows with tails of zeros).

    Of floating-point numbers also `large` (about 1e4), `equal` (the same number everywhere) and `special` (infinities, NaN, zeros of
    both signs, and the ends of types among others).
    """
    if dtype.kind in "OSU":
        return np.array([f"w{n}" for n in rng.integers(0, 3, int(np.prod(shape)))], dtype=object).reshape(shape)
    if kind == "index":
        return rng.integers(0, 2, shape).astype(dtype)
    if kind == "mask":
        mask = np.ones(shape)
        if mask.size and mask.ndim:
            rows = mask.reshape(-1, mask.shape[-1])
            for number, row in enumerate(rows):
                row[rng.integers(0, mask.shape[-1] + 1) if number else 0 :] = 0  # the first row is hidden altogether
        return mask.astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -3, 4, shape).astype(dtype)
    numbers = np.asarray(rng.standard_normal(shape))
    if kind == "large":
        numbers = numbers * 1e4
    elif kind == "equal":
        numbers = np.full(shape, 3 * rng.standard_normal())
    elif kind == "special":
        numbers = np.where(rng.random(shape) < 0.3, rng.choice(_SPECIAL, shape), numbers)
    with np.errstate(over="ignore"):
        return np.asarray(numbers).astype(dtype)


class Choose:
    """Choices that hypothesis makes, and can repeat and shrink."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both included."""
        if low > high:
            raise RefusedError("no number to choose from")
        return int(self._draw(st.integers(low, high)))

    def chance(self, percent: int) -> bool:
        """True in about so many cases of 100."""
        return self.integer(0, 99) >= 100 - percent

    def pick(self, options: Iterable[T]) -> T:
        """One of the options."""
        found = list(options)
        if not found:
            raise RefusedError("nothing to choose from")
        return found[self.integer(0, len(found) - 1)]

    def permutation(self, count: int) -> list[int]:
        """The numbers below `count` in some order."""
        rest, order = list(range(count)), []
        while rest:
            order.append(rest.pop(self.integer(0, len(rest) - 1)))
        return order


@dataclass
class Shared:
    """What all graphs of one model have in common; `nearly` allows constants a millionth off neutral ones.

    `only` is the one floating-point type of the model, if it has but one; `filling` is how inputs are filled unless asked otherwise.
    """

    opset: int
    nearly: bool
    only: type[np.floating[Any]] | None = None
    filling: str = "plain"
    inputs: list[Input] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    count: int = 0
    operators: set[str] = field(default_factory=set)


class Builder:
    """One graph of a model: the main graph, a body of control flow, or a function."""

    def __init__(self, choose: Choose, shared: Shared, outer: Builder | None = None, function: bool = False) -> None:
        self.choose, self.shared, self.outer, self.function = choose, shared, outer, function
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.values: list[Value] = []
        self.defaults: list[str] = []
        self._opaque: dict[str, onnx.NodeProto] = {}

    @property
    def opset(self) -> int:
        """The version of ai.onnx."""
        return self.shared.opset

    @property
    def depth(self) -> int:
        """How many graphs are around this one."""
        return 0 if self.outer is None else self.outer.depth + 1

    @property
    def root(self) -> Builder:
        """The main graph."""
        return self if self.outer is None else self.outer.root

    @property
    def in_function(self) -> bool:
        """Whether this is a function or a body in one."""
        return self.function or (self.outer is not None and self.outer.in_function)

    def visible(self) -> list[Value]:
        """Everything that a node may use, the nearest last."""
        outside = self.outer.visible() if self.outer is not None and not self.function else []
        return outside + self.values

    def name(self) -> str:
        """A new name; some look like those that tools make."""
        self.shared.count += 1
        stem = self.choose.pick(["v", "v", "v", "ortfuse_const_", "fold.", "x/y:"])
        return f"{stem}{self.shared.count}"

    # Sources.

    def input(self, dtype: Any, dims: Sequence[int | str], kind: str = "plain") -> Value:
        """A new input of the model."""
        if self.in_function:
            raise RefusedError("a function has no inputs of the model")
        declared = self.choose.pick(["all", "all", "all", "ranks", "none"])
        dtype = np.dtype(dtype)
        if dtype.kind == "f":
            dtype, kind = np.dtype(self.shared.only or dtype), self.shared.filling if kind == "plain" else kind
        made = Input(self.name(), dtype, tuple(dims), kind, self.choose.integer(0, 99), declared)
        self.shared.inputs.append(made)
        value = Value(made.name, made.make(SIZES))
        self.root.values.append(value)
        return value

    def const(self, array: Any, dtype: Any = None) -> Value:
        """A constant: an initializer (sometimes one that may be overridden), a Constant node, or one that is there already."""
        array = np.asarray(array, dtype)
        for known in self.values:
            if (
                known.name in {t.name for t in self.initializers}
                and self.choose.chance(50)
                and _same(known.array, array)
            ):
                return known
        name = self.name()
        tensor = numpy_helper.from_array(array, name)
        how = (
            "node" if self.function else self.choose.pick(["initializer", "initializer", "node", "identity", "default"])
        )
        if how == "default" and self.outer is None and self.choose.chance(30):
            self.defaults.append(name)
        if how == "node":
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
        value = Value(name, array)
        self.values.append(value)
        return self.op("Identity", value) if how == "identity" else value

    def ints(self, numbers: Sequence[int] | int) -> Value:
        """A constant of int64."""
        return self.const(np.array(numbers, np.int64))

    def some(self, dtype: Any = None, rank: int | None = None, exact: bool = False) -> Value:
        """A value that is there, the newest most often."""
        fitting = [
            v
            for v in self.visible()
            if v.array is not None
            and (dtype is None or v.dtype == dtype)
            and (rank is None or v.known.ndim == rank)
            and (v.exact or not exact)
        ]
        if not fitting:
            raise RefusedError("no such value")
        return self.choose.pick(fitting[-4:] if self.choose.chance(70) else fitting)

    def some_float(self, rank: int | None = None) -> Value:
        """A floating-point value that is there."""
        fitting = [
            v for v in self.visible() if v.array is not None and v.dtype.kind == "f" and rank in (None, v.known.ndim)
        ]
        return self.choose.pick(fitting[-4:] if self.choose.chance(70) else fitting)

    # Nodes.

    def op(
        self, op_type: str, *inputs: Value | None, domain: str = "", opaque: bool = False, **attributes: Any
    ) -> Value:
        """A new node of one output."""
        return self.ops(op_type, *inputs, outputs=1, domain=domain, opaque=opaque, **attributes)[0]

    def ops(
        self,
        op_type: str,
        *inputs: Value | None,
        outputs: int,
        domain: str = "",
        opaque: bool = False,
        **attributes: Any,
    ) -> list[Value]:
        """A new node, executed at once.

        Raises:
            RefusedError: The runtime refuses it, or the result is too large.
        """
        names = [self.name() for _ in range(outputs)]
        attributes = {key: item for key, item in attributes.items() if item is not None}
        empty = attributes.pop("empty", ())
        inputs, attributes = in_old_form(op_type, inputs, attributes, self.opset)  # type: ignore[assignment]
        given = ["" if value is None else value.name for value in inputs]
        node = helper.make_node(op_type, given, names, domain=domain, **attributes)
        node.attribute.extend(onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS) for name in empty)
        exact = op_type in _MOVES and all(v is None or v.exact for v in inputs)
        if opaque:
            self._opaque[names[0]] = node
            arrays: list[Array | None] = [None]
        else:
            arrays = self._execute(node)
        integral = [array is not None and array.dtype.kind not in "f" for array in arrays]
        made = [Value(n, a, exact or whole) for n, a, whole in zip(names, arrays, integral, strict=True)]
        self.nodes.append(node)
        self.values += made
        self.shared.operators.add(f"{domain}.{op_type}" if domain else op_type)
        return made

    def _execute(self, node: onnx.NodeProto) -> list[Array | None]:
        nodes = [node]
        waiting = list(free_names([node]))
        while waiting:
            producer = self._producer(waiting.pop())
            if producer is not None and producer not in nodes:
                nodes.insert(0, producer)
                waiting += free_names([producer])
        arrays = {v.name: v.array for v in self.visible() if v.array is not None}
        feeds = {name: arrays[name] for name in free_names(nodes) if name in arrays}
        small = [numpy_helper.from_array(a, n) for n, a in feeds.items() if a.dtype.kind not in "OSU"]
        texts = {n: a for n, a in feeds.items() if a.dtype.kind in "OSU"}
        inputs = [helper.make_tensor_value_info(n, TensorProto.STRING, a.shape) for n, a in texts.items()]
        graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=n) for n in node.output], small)
        try:
            results = session(model_of(graph, self.shared)).run(None, texts)
        except Exception as error:
            raise RefusedError(f"{node.op_type}: {error}") from error
        for array in results:
            if not isinstance(array, np.ndarray):
                raise RefusedError("no tensor")
            finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
            if array.size > _MOST_ELEMENTS or array.ndim > 6:
                raise RefusedError("too large")
            if (
                self.shared.filling in ("plain", "equal")
                and array.dtype.kind == "f"
                and finite.size
                and np.abs(finite).max() > _LARGEST
                and node.op_type not in (*_MOVES, "Mul", "Add")
            ):
                raise RefusedError("large numbers only make errors look small")
        return results

    def _producer(self, name: str) -> onnx.NodeProto | None:
        found = self._opaque.get(name)
        return found if found is not None or self.outer is None or self.function else self.outer._producer(name)

    # Taking back.

    def state(self) -> tuple[int, ...]:
        """What `restore` goes back to."""
        shared = self.shared
        return (
            len(self.nodes),
            len(self.initializers),
            len(self.values),
            len(self.defaults),
            len(shared.inputs),
            len(shared.functions),
        )

    def restore(self, state: tuple[int, ...]) -> None:
        """Take back everything since `state`."""
        shared = self.shared
        parts: tuple[list[Any], ...] = (
            self.nodes,
            self.initializers,
            self.values,
            self.defaults,
            shared.inputs,
            shared.functions,
        )
        gone = {made.name for made in shared.inputs[state[4] :]}
        for part, length in zip(parts, state, strict=True):
            del part[length:]
        if gone:  # inputs that a body asked for stand in the main graph
            root = self.root
            root.values[:] = [value for value in root.values if value.name not in gone]


def _same(known: Array | None, array: Array) -> bool:
    return (
        known is not None
        and known.dtype == array.dtype
        and known.shape == array.shape
        and known.tobytes() == array.tobytes()
    )


def free_names(nodes: Iterable[onnx.NodeProto]) -> dict[str, None]:
    """The names that nodes use, in bodies too, and that none of them produces."""
    used: dict[str, None] = {}
    made: set[str] = set()
    for node in nodes:
        for attribute in node.attribute:
            for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
                inner = {*(v.name for v in graph.input), *(t.name for t in graph.initializer)}
                outputs = helper.make_node("Outputs", [v.name for v in graph.output], [])
                used |= {name: None for name in free_names([*graph.node, outputs]) if name not in inner | made}
        used |= {name: None for name in node.input if name and name not in made}
        made.update(node.output)
    return used


def model_of(graph: onnx.GraphProto, shared: Shared) -> onnx.ModelProto:
    """A model around a graph."""
    imports = [
        helper.make_opsetid("", shared.opset),
        helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("local", 1),
    ]
    return helper.make_model(graph, opset_imports=imports, functions=shared.functions, ir_version=10)


def session(model: onnx.ModelProto, packed: bool = True) -> ort.InferenceSession:
    """A session without the runtime's own optimisations, with packed weights or without."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    if not packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
