"""Build the model of a cell: which operands of a seed are inputs of the model, which are constants, which are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
from onnx import TensorProto, helper

from benchmarks.trust.grid.seeds import EXCHANGED, NEWEST, TYPE_ATTRIBUTES, Held, Seed

IR_VERSION = 10
_USUAL_OPSET = 17
_NARROW = ".narrow"
_EXCHANGED_TYPES = frozenset({*range(14)})

_MOST_SYMBOLIC = 4
_SHIFTS = (0, 1, 2, -1, 3)

ALLOCATE = frozenset(
    """
    AffineGrid BlackmanWindow CenterCropPad Col2Im ConstantOfShape DFT Expand EyeLike GridSample GroupQueryAttention HammingWindow
    HannWindow MaxUnpool MelWeightMatrix Multinomial NonMaxSuppression OneHot Pad RandomNormal RandomUniform Range Resize
    ReverseSequence STFT Tile TopK Upsample
    """.split()  # noqa: SIM905
)
"""Operators whose results are as large as the numbers in an operand or attribute say: those get no large numbers."""

Run = tuple[dict[str, Any], dict[str, int]]


@dataclass(frozen=True)
class Cell:
    """A model of one operator, the inputs it is run on, and the sizes of the symbols in its inputs' shapes for each.

    `before`: other operators in the model, whose results are operands.
    """

    label: str
    seed: Seed
    model: onnx.ModelProto
    runs: tuple[Run, ...]
    constant: bool
    before: tuple[Seed, ...] = ()

    def __str__(self) -> str:
        return self.label


class Parts:
    """The parts of a model around the nodes under test: inputs, their values, constants, and nodes that make operands."""

    def __init__(self) -> None:
        self.inputs: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        self.constants: list[TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.is_narrow = False

    def operands(self, seed: Seed, is_open: Callable[[int], bool], prefix: str = "i") -> list[str]:
        """Add the operands of a seed; returns the names of the node's inputs."""
        names = []
        for index, value in enumerate(seed.inputs):
            names.append("" if value is None else f"{prefix}{index}")
            if value is not None:
                self.add(names[-1], value, is_open(index))
        return names

    def add(self, name: str, value: Any, is_open: bool) -> None:
        """Add an operand: an input of the model, each axis with a name of its own, or a constant.

        Sequences and optionals, which cannot be constants, are inputs.
        """
        if isinstance(value, list | Held):
            self.inputs.append(_container(name, value))
            self.feeds[name] = value.value if isinstance(value, Held) else value
        elif is_open:
            dims = {f"{name}_{axis}": size for axis, size in enumerate(value.shape)}
            self.sizes |= dims
            self._open(name, value, list(dims))
        else:
            self.is_narrow |= is_narrow(value)
            self.constants.append(onnx.numpy_helper.from_array(value, name))

    def _open(self, name: str, value: np.ndarray, dims: list[str]) -> None:
        """Feed a type that the runtime does not take as float32, and convert it."""
        fed, kind = name, dtype_of(value)
        if is_narrow(value):
            self.is_narrow = True
            fed = f"{name}.float"
            self.nodes.append(helper.make_node("Cast", [fed], [name], to=kind))
            kind, value = TensorProto.FLOAT, value.astype(np.float32)
        self.inputs.append(helper.make_tensor_value_info(fed, kind, dims))
        self.feeds[fed] = value

    def count(self, name: str, value: np.ndarray) -> None:
        """Add an operand of integers that are computed from the sizes of an input, as exporters do."""
        symbols = [f"{name}_n{number}" for number in range(value.size)]
        first = np.clip(np.where(value < 0, 1, value), 0, 4).astype(np.int64).reshape(-1)
        self.sizes |= dict(zip(symbols, first.tolist(), strict=True))
        self._open(f"{name}.sized", np.zeros(first, np.float32), symbols)
        self.add(f"{name}.offset", (value.astype(np.int64).reshape(-1) - first).astype(value.dtype), False)
        self.add(f"{name}.shape", np.array(value.shape, np.int64), False)
        self.nodes += [
            helper.make_node("Shape", [f"{name}.sized"], [f"{name}.counted"]),
            helper.make_node("Cast", [f"{name}.counted"], [f"{name}.cast"], to=dtype_of(value)),
            helper.make_node("Add", [f"{name}.cast", f"{name}.offset"], [f"{name}.sum"]),
            helper.make_node("Reshape", [f"{name}.sum", f"{name}.shape"], [name]),
        ]

    def construct(self, name: str, value: Any) -> None:
        """Add a sequence or optional that a node of the model makes: the first tensor in it is unknown, others are constant."""
        if isinstance(value, Held):
            inner = [] if value.value is None else [f"{name}h"]
            made = helper.make_node("Optional", inner, [name], **({} if inner else {"type": value.kind}))
            if isinstance(value.value, list):
                self.construct(inner[0], value.value)
            elif inner:
                self.add(inner[0], np.asarray(value.value), True)
        else:
            inner = [f"{name}e{position}" for position in range(len(value))]
            for position, one in enumerate(value):
                self.add(inner[position], one, not position)
            made = helper.make_node("SequenceConstruct" if inner else "SequenceEmpty", inner, [name])
        self.nodes.append(made)

    def model(self, nodes: list[onnx.NodeProto], imports: Mapping[str, int]) -> onnx.ModelProto:
        """The model; its results are those of the last node."""
        results = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output if name]
        graph = helper.make_graph([*self.nodes, *nodes], "cell", self.inputs, results, self.constants)
        ids = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
        model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=ids)
        named = [one.i for node in nodes for one in node.attribute if one.name in TYPE_ATTRIBUTES]
        if self.is_narrow or not _EXCHANGED_TYPES.issuperset(named):
            _widen_results(model)
        return model


def is_narrow(value: Any) -> bool:
    """Whether it is an array of a type that the runtime does not exchange as an array of numpy's own."""
    return isinstance(value, np.ndarray) and value.dtype.name not in EXCHANGED


def _widen_results(model: onnx.ModelProto) -> None:
    """Convert results of types that the runtime does not give as arrays; what they were is declared, so that it is checked."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError:
        return  # it is not valid
    for number, result in enumerate(inferred.graph.output):
        kind = result.type.tensor_type.elem_type
        if kind in _EXCHANGED_TYPES:
            continue
        name = f"{result.name}{_NARROW}"
        for node in model.graph.node:
            node.output[:] = [name if one == result.name else one for one in node.output]
        model.graph.node.append(helper.make_node("Cast", [name], [result.name], to=TensorProto.FLOAT))
        model.graph.value_info.append(helper.make_tensor_value_info(name, kind, None))
        model.graph.output[number].ClearField("type")


def node_of(seed: Seed, names: list[str], prefix: str = "o") -> onnx.NodeProto:
    """The node of a seed on operands of these names."""
    outputs = [f"{prefix}{index}" if asked else "" for index, asked in enumerate(seed.outputs)]
    node = helper.make_node(seed.op_type, names, outputs, domain=seed.domain)
    node.attribute.extend(seed.attributes.values())
    return node


def dtype_of(value: np.ndarray) -> int:
    """ONNX's number for the element type of an array."""
    return TensorProto.STRING if value.dtype == object else int(helper.np_dtype_to_tensor_dtype(value.dtype))


def _container(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, Held):
        return helper.make_value_info(name, helper.make_optional_type_proto(value.kind))
    kind = dtype_of(value[0]) if value else TensorProto.FLOAT
    return helper.make_tensor_sequence_value_info(name, kind, None)


def _imports(seed: Seed, parts: Parts) -> dict[str, int]:
    return {"": NEWEST if parts.is_narrow else _USUAL_OPSET, seed.domain: seed.version}


# The ways to build a cell of a seed.


def _unknown(label: str, seed: Seed, part: int) -> Cell | None:
    """Every operand is an input of the model, each axis with a name of its own."""
    return _cell(label, seed, lambda index: True)


def _constant(label: str, seed: Seed, part: int) -> Cell | None:
    """Every operand is a constant, but sequences."""
    return _cell(label, seed, lambda index: False)


def _one_unknown(label: str, seed: Seed, part: int) -> Cell | None:
    return _cell(label, seed, lambda index: index == part)


def _one_known(label: str, seed: Seed, part: int) -> Cell | None:
    return None if len(seed.inputs) < 3 else _cell(label, seed, lambda index: index != part)


def _cell(label: str, seed: Seed, is_open: Callable[[int], bool]) -> Cell | None:
    parts = Parts()
    names = parts.operands(seed, is_open)
    model = parts.model([node_of(seed, names)], _imports(seed, parts))
    return Cell(label, seed, model, ((parts.feeds, parts.sizes),), constant=not parts.inputs)


def _constructed(label: str, seed: Seed, part: int) -> Cell | None:
    """Sequences and optionals are made by nodes of the model, so that what is in them can be known."""
    if not any(isinstance(value, list | Held) for value in seed.inputs):
        return None
    parts = Parts()
    names = []
    for index, value in enumerate(seed.inputs):
        names.append("" if value is None else f"i{index}")
        if isinstance(value, list | Held):
            parts.construct(names[-1], value)
        elif value is not None:
            parts.add(names[-1], value, False)
    model = parts.model([node_of(seed, names)], _imports(seed, parts))
    return Cell(label, seed, model, ((parts.feeds, parts.sizes),), constant=not parts.inputs)


def _sizes(label: str, seed: Seed, part: int) -> Cell | None:
    """One integer operand is computed from the sizes of an input, as exporters do; tried with several of them."""
    value = seed.inputs[part]
    if (
        not isinstance(value, np.ndarray)
        or value.dtype not in (np.int64, np.int32)
        or not 0 < value.size <= _MOST_SYMBOLIC
    ):
        return None
    if seed.op_type in ALLOCATE and np.abs(value).max() > 1 << 20:
        return None
    if any(isinstance(one, list | Held) for one in seed.inputs):
        return None
    parts = Parts()
    names = parts.operands(seed.with_input(part, None), lambda index: False)
    names += [""] * (part + 1 - len(names))
    names[part] = "operand"
    parts.count("operand", value)
    # The first run has the operand that the seed has; the sizes of the others are a little off.
    runs = []
    for shift in _SHIFTS:
        sizes = {name: max(size + shift, 0) for name, size in parts.sizes.items()}
        runs.append(({"operand.sized": np.zeros([*sizes.values()], np.float32)}, sizes))
    model = parts.model([node_of(seed, names)], _imports(seed, parts))
    return Cell(label, seed, model, tuple(runs), constant=False)


MODES: dict[str, Callable[[str, Seed, int], Cell | None]] = {
    "unknown": _unknown,
    "constant": _constant,
    "one unknown": _one_unknown,
    "one known": _one_known,
    "constructed": _constructed,
    "sizes": _sizes,
}
OF_ONE_OPERAND = frozenset({"one unknown", "one known", "sizes"})
