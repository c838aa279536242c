"""Schemes for tests: a MatMul whose weights are rounded to fewer bits, which takes as much time as a test says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.runtime.inputs.random_inputs import Inputs

BITS = {"fine": 11, "middle": 9, "coarse": 7}


@dataclass(frozen=True)
class Site:
    operator: str
    activations: tuple[str, ...]
    schemes: tuple[str, ...]
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    module: str = ""


class Rounding:
    """MatMul sites with the schemes of `BITS`; `worse` says by which factor the noise of a scheme is larger in the whole model."""

    def __init__(self, schemes: Sequence[str] = tuple(BITS), worse: Mapping[str, float] | None = None) -> None:
        self.schemes, self.worse, self.made = schemes, worse or {}, 0

    def sites(self, model: ir.Model) -> dict[str, Site]:
        return {
            node.outputs[0].name or "": Site("MatMul", (node.inputs[0].name or "",), tuple(self.schemes))
            for node in model.graph
            if node.op_type == "MatMul" and node.inputs[0] is not None and node.inputs[1].is_initializer()
        }

    def left(self, model: ir.Model) -> dict[str, str]:
        return {}

    def calibrate(self, model: ir.Model, names: Collection[str], inputs: Sequence[Inputs]) -> Any:
        return None

    def observes(self, scheme: str) -> bool:
        return False

    def is_fitted(self, scheme: str) -> bool:
        return False

    def lowered(self, model: ir.Model, choice: Mapping[str, str], calibration: Any) -> ir.Model:
        self.made += 1
        copy = model.clone()
        whole = len([node for node in copy.graph if node.op_type == "MatMul"]) > 1
        for node in copy.graph:
            name = node.outputs[0].name or ""
            if name in choice:
                factor = self.worse.get(name, 1.0) if whole else 1.0
                weight = node.inputs[1]
                array = weight.const_value.numpy()
                weight.const_value = ir.tensor(
                    array + factor * (_rounded(array, BITS[choice[name]]) - array), name=weight.name
                )
                node.metadata_props["scheme"] = choice[name]
                for _ in range(BITS[choice[name]]):  # other operators than in float32, and than on the other schemes
                    copy.graph.insert_before(node, identity := ir.node("Identity", [node.inputs[1]]))
                    node.replace_input_with(1, identity.outputs[0])
        return copy


def _rounded(array: np.ndarray, bits: int) -> np.ndarray:
    step = np.abs(array).max() / 2 ** (bits - 1)
    return (np.round(array / step) * step).astype(array.dtype)


class Cutting(Rounding):
    """Besides, a scheme `cut`, the fastest and most exact as long as all values are within the range that was observed."""

    def __init__(self) -> None:
        super().__init__((*BITS, "cut"))

    def calibrate(self, model: ir.Model, names: Collection[str], inputs: Sequence[Inputs]) -> Any:
        return {"a0": max(float(np.abs(arrays["a0"]).max()) for arrays in inputs)}

    def observes(self, scheme: str) -> bool:
        return scheme == "cut"

    def lowered(self, model: ir.Model, choice: Mapping[str, str], calibration: Any) -> ir.Model:
        cut = {name for name, scheme in choice.items() if scheme == "cut"}
        copy = super().lowered(model, {name: scheme for name, scheme in choice.items() if scheme != "cut"}, calibration)
        for node in list(copy.graph):
            value = node.inputs[0]
            if node.outputs and node.outputs[0].name in cut:
                node.metadata_props["scheme"] = "cut"
                most = calibration.get(value.name, 1.0)
                limits = [
                    ir.Value(name=f"{value.name}.{n}", const_value=ir.tensor(np.float32(n * most))) for n in (-1, 1)
                ]
                for limit in limits:
                    copy.graph.register_initializer(limit)
                copy.graph.insert_before(node, clip := ir.node("Clip", [value, *limits]))
                node.replace_input_with(0, clip.outputs[0])
        return copy


class Table:
    """A clock that shows what it is told: the seconds of each scheme."""

    def __init__(self, **seconds: float) -> None:
        self.table = {"": 1e-3, "fine": 6e-4, "middle": 5e-4, "coarse": 4e-4, "cut": 3e-4, **seconds}
        self.asked = 0

    def seconds(self, models: Mapping[str, ir.Model], inputs: Inputs) -> dict[str, float]:
        self.asked += 1
        return {name: sum(map(self._of_node, model.graph)) for name, model in models.items()}

    def _of_node(self, node: ir.Node) -> float:
        return self.table[node.metadata_props.get("scheme", "")] if node.op_type == "MatMul" else 0.0
