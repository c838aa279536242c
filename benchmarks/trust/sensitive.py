"""Verdicts about right and wrong rewrites of models that amplify rounding.

    python -m benchmarks.trust.sensitive [--output FILE]

Each model is verified against rewrites of itself that are right (other order of sums, reciprocals, folded scales, fused
operators, ortfuse's own) and against wrong ones (a constant, an axis, an epsilon, a mask, a residual), once with the names of
its values kept and once with all of them changed, as other tools do. A false acceptance is a wrong rewrite that passes, a
false refusal a right one that does not. How sensitive a model is stands next to it: by how much its output moves when its
inputs and weights are off by one rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

import ortfuse
from benchmarks.results import Results
from ortfuse.runtime.rounding_sensitivity import Sensitivity
from ortfuse.verification import experiments

WIDTH = 16

INPUTS = [
    {
        "x": np.random.default_rng(0).standard_normal((3, 6, WIDTH)).astype(np.float32),
        "keep": np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]], bool),
    }
]

RIGHT = ("same", "halves", "reciprocal", "folded", "fused", "reordered")
WRONG = ("constant", "slight constant", "axis", "epsilon", "mask", "residual", "tanh")


class Writer:
    """Writes the nodes of a model, in the spelling of a variant."""

    def __init__(self, variant: str, seed: int = 0) -> None:
        self.variant = variant
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._count = 0

    def const(self, array: Any) -> str:
        name = f"w{len(self._weights)}_{self.variant}"
        self._weights.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def weight(self, *shape: int, gain: float = 1.0) -> np.ndarray:
        return (gain * self._rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        self._count += 1
        output = name or f"{self.variant}_{self._count}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def matmul(self, x: str, w: np.ndarray, name: str = "") -> str:
        if self.variant == "halves":
            half = w.shape[0] // 2
            parts = self._split(x)
            return self.op(
                "Add",
                *(self.op("MatMul", p, self.const(v)) for p, v in zip(parts, (w[:half], w[half:]), strict=True)),
                name=name,
            )
        return self.op("MatMul", x, self.const(w), name=name)

    def _split(self, x: str) -> list[str]:
        outputs = [f"{self.variant}_{self._count}_{half}" for half in "ab"]
        self._count += 1
        self._nodes.append(helper.make_node("Split", [x], outputs, axis=-1, num_outputs=2))
        return outputs

    def normalized(self, x: str, name: str = "") -> str:
        axis = 1 if self.variant == "axis" else -1
        epsilon = 1e-4 if self.variant == "epsilon" else 1e-5
        if self.variant == "fused":
            return self.op("LayerNormalization", x, self.const(np.ones(WIDTH)), axis=-1, epsilon=epsilon, name=name)
        axes = self.op("Constant", value_ints=[axis])
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes))
        square = self.op("Mul", centred, centred)
        deviation = self.op("Sqrt", self.op("Add", self.op("ReduceMean", square, axes), self.const(epsilon)))
        if self.variant == "reciprocal":
            return self.op("Mul", centred, self.op("Reciprocal", deviation), name=name)
        return self.op("Div", centred, deviation, name=name)

    def gelu(self, x: str) -> str:
        if self.variant in ("fused", "tanh"):
            return self.op("Gelu", x, approximate="tanh" if self.variant == "tanh" else "none")
        inner = self.op("Erf", self.op("Div", x, self.const(np.sqrt(2))))
        if self.variant == "reordered":
            return self.op(
                "Add", self.op("Mul", x, self.const(0.5)), self.op("Mul", self.op("Mul", x, inner), self.const(0.5))
            )
        return self.op("Mul", self.op("Mul", x, self.op("Add", inner, self.const(1.0))), self.const(0.5))

    def scaled(self, x: str, w: np.ndarray, scale: float) -> str:
        scale *= {"constant": 1.01, "slight constant": 1.00005}.get(self.variant, 1.0)
        if self.variant == "folded":
            return self.op("MatMul", x, self.const(w * np.float32(scale)))
        return self.op("Mul", self.matmul(x, w), self.const(scale))

    def residual(self, x: str, branch: str, name: str, *, last: bool) -> str:
        if self.variant == "residual" and last:
            return self.op("Identity", branch, name=name)
        return self.op("Add", *((branch, x) if self.variant == "reordered" else (x, branch)), name=name)

    def model(self, output: str, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
        shape = ["b", 6, WIDTH]
        graph = helper.make_graph(
            self._nodes,
            "sensitive",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
                helper.make_tensor_value_info("keep", TensorProto.BOOL, ["b", 6]),
            ],
            [helper.make_tensor_value_info(output, kind, None)],
            self._weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def stack(gain: float, depth: int, *, wave: bool = False) -> Callable[[str], onnx.ModelProto]:
    """Blocks x + MLP(norm(x)); the gain decides how much each amplifies, and a wave after each how chaotic they are."""

    def make(variant: str) -> onnx.ModelProto:
        w, h = Writer(variant), "x"
        for layer in range(depth):
            inner = w.gelu(w.scaled(w.normalized(h), w.weight(WIDTH, WIDTH, gain=gain), 0.7))
            branch = w.matmul(inner, w.weight(WIDTH, WIDTH, gain=gain))
            h = w.residual(h, w.op("Sin", branch) if wave else branch, f"h{layer}", last=layer == depth - 1)
        return w.model(w.op("Mul", h, w.mask("keep"), name="y"))

    return make


def attention(gain: float, depth: int) -> Callable[[str], onnx.ModelProto]:
    """Attention whose scores have a large scale, so that it chooses hard."""

    def make(variant: str) -> onnx.ModelProto:
        w, h = Writer(variant), "x"
        for layer in range(depth):
            n = w.normalized(h)
            q, k, v = (w.scaled(n, w.weight(WIDTH, WIDTH, gain=g), 1.0) for g in (gain, gain, 2.0))
            scores = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 2, 1]))
            mixed = w.op("MatMul", w.op("Softmax", w.masked(scores), axis=-1), v)
            h = w.residual(h, mixed, f"h{layer}", last=layer == depth - 1)
        return w.model(w.op("Identity", h, name="y"))

    return make


def recurrence(steps: int, rate: float) -> Callable[[str], onnx.ModelProto]:
    """The logistic map, unrolled: chaotic for rates near 4."""

    def make(variant: str) -> onnx.ModelProto:
        w = Writer(variant)
        h = w.op("Sigmoid", w.scaled(w.normalized("x"), w.weight(WIDTH, WIDTH), 1.0), name="h")
        for step in range(steps):
            r = w.const(rate * {"constant": 1.001, "slight constant": 1.00005}.get(variant, 1.0))
            one = w.const(1.0)
            if variant == "reordered":
                h = w.op("Mul", w.op("Mul", r, w.op("Sub", one, h)), h, name=f"h{step}")
            elif variant == "fused":
                h = w.op("Mul", r, w.op("Sub", h, w.op("Mul", h, h)), name=f"h{step}")
            else:
                h = w.op("Mul", w.op("Mul", r, h), w.op("Sub", one, h), name=f"h{step}")
        return w.model(w.op("Mul", h, w.mask("keep"), name="y"))

    return make


def chosen(inner: Callable[[str], onnx.ModelProto]) -> Callable[[str], onnx.ModelProto]:
    """The same with an ArgMax of the output."""

    def make(variant: str) -> onnx.ModelProto:
        made = inner(variant)
        made.graph.node.append(helper.make_node("ArgMax", ["y"], ["z"], axis=-1, keepdims=0))
        del made.graph.output[:]
        made.graph.output.append(helper.make_tensor_value_info("z", TensorProto.INT64, None))
        return made

    return make


def _mask(self: Writer, name: str) -> str:
    """The mask as a factor of every element; the variant `mask` has ones instead."""
    kept = self.op("Unsqueeze", self.op("Cast", name, to=TensorProto.FLOAT), self.op("Constant", value_ints=[2]))
    if self.variant == "mask":
        return self.op("Max", kept, self.const(1.0))
    return kept


def _masked(self: Writer, scores: str) -> str:
    if self.variant == "mask":
        return scores
    row = self.op("Unsqueeze", "keep", self.op("Constant", value_ints=[1]))
    return self.op("Where", row, scores, self.const(-1e9))


Writer.mask, Writer.masked = _mask, _masked  # type: ignore[attr-defined]

MODELS: dict[str, Callable[[str], onnx.ModelProto]] = {
    "calm stack": stack(1.0, 4),
    "stack of sines": stack(12.0, 12, wave=True),
    "attention of gain 8": attention(8.0, 8),
    "logistic map, 10 steps": recurrence(10, 3.99),
    "logistic map, 40 steps": recurrence(40, 3.99),
    "choice of a calm stack": chosen(stack(1.0, 4)),
}


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which no intermediate value and no weight has the name it had."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    ends = {value.name for value in (*copy.graph.input, *copy.graph.output)} | {""}

    def name(old: str) -> str:
        return old if old in ends else f"other_{old}"

    for node in copy.graph.node:
        node.input[:] = [name(one) for one in node.input]
        node.output[:] = [name(one) for one in node.output]
    for tensor in copy.graph.initializer:
        tensor.name = name(tensor.name)
    return copy


def rewrites(
    make: Callable[[str], onnx.ModelProto], original: onnx.ModelProto
) -> Iterator[tuple[str, bool, onnx.ModelProto]]:
    """Each rewrite with its name and whether it is right; those that change nothing are left out."""
    for variant in (*RIGHT, *WRONG):
        made = make(variant)
        kept = [
            [(node.op_type, list(node.input)) for node in one.graph.node]
            for one in (renumbered(made), renumbered(original))
        ]
        weights = [[tensor.raw_data for tensor in one.graph.initializer] for one in (made, original)]
        if variant != "same" and (
            kept[0] != kept[1] or weights[0] != weights[1] or _attributes(made) != _attributes(original)
        ):
            yield variant, variant in RIGHT, made
            yield f"{variant}, renamed", variant in RIGHT, renamed(made)
    result = ortfuse.optimize(original).model
    yield "ortfuse", True, result
    yield "ortfuse, renamed", True, renamed(result)


def renumbered(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with values named by number, to tell whether two are written alike."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    numbers: dict[str, str] = {}
    for node in copy.graph.node:
        node.input[:] = [numbers.setdefault(one, str(len(numbers))) for one in node.input]
        node.output[:] = [numbers.setdefault(one, str(len(numbers))) for one in node.output]
    return copy


def _attributes(model: onnx.ModelProto) -> list[bytes]:
    return [attribute.SerializeToString() for node in model.graph.node for attribute in node.attribute]


def sensitivity(model: onnx.ModelProto) -> float | None:
    """The most that the output moves when inputs or weights are off by one rounding, relative to its scale."""
    original = ir.from_proto(model)
    found, _ = experiments(original, INPUTS)
    moved = [
        value
        for experiment in found
        for how in Sensitivity(original).of(experiment).values()
        for what, value in how.items()
        if "rounding" in what
    ]
    finite = [value for value in moved if np.isfinite(value)]
    return max(finite) if len(finite) == len(moved) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("-k", "--only", default="")
    arguments = parser.parse_args()
    rows = []
    for name, make in MODELS.items():
        if arguments.only not in name:
            continue
        original = make("same")
        row: dict[str, Any] = {"model": name, "moves by": sensitivity(original), "rewrites": []}
        for rewrite, right, made in rewrites(make, original):
            verdict = ortfuse.verify(original, made, inputs=INPUTS)
            row["rewrites"].append(
                {"rewrite": rewrite, "right": right, "state": verdict.state, "summary": verdict.summary()}
            )
            if right != verdict.ok:
                print(
                    name,
                    "|",
                    rewrite,
                    "|",
                    "FALSE REFUSAL" if right else "FALSE ACCEPTANCE",
                    "|",
                    verdict.summary()[:400],
                )
        rows.append(row)
        counts = count([row])
        print(f"{name}: sensitivity {row['moves by']}, {counts}", flush=True)
    print(count(rows))
    if not arguments.only:
        found = {
            "total": count(rows),
            "models": {row["model"]: {"moves by": row["moves by"], **count([row])} for row in rows},
        }
        Results("trust.sensitive", arguments.output).store(
            "python -m benchmarks.trust.sensitive", found, raw={"rows": rows}
        )


def count(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Count the right and wrong rewrites by their verdicts."""
    every = [one for row in rows for one in row["rewrites"]]
    right, wrong = [one for one in every if one["right"]], [one for one in every if not one["right"]]
    return {
        "right": len(right),
        "right, within the model's own sensitivity": sum("within" in one["state"] for one in right),
        "false refusals": sum(one["state"] == "not equal" for one in right),
        "wrong": len(wrong),
        "false acceptances": sum(one["state"] != "not equal" for one in wrong),
    }


if __name__ == "__main__":
    main()
