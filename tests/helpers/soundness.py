"""Holds facts against what ONNX Runtime computes: every intermediate value of a model, for given inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from benchmarks.trust.grid.judge import Judge
from ortfuse.analysis import propagation
from ortfuse.analysis.facts import Facts
from ortfuse.analysis.ranges import queries
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError

ort.set_default_logger_severity(3)


@pytest.fixture
def strict_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let errors in transfer functions through, which on valid models are mistakes of ours."""
    monkeypatch.setattr(propagation, "_NOT_KNOWN", (UnknownError,))
    monkeypatch.setattr(queries, "NOT_KNOWN", (UnknownError,))


def run_exposed(proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every value that a node of the main graph produces, computed without optimisations."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(proto)
    known = {value.name for value in exposed.graph.output}
    for node in exposed.graph.node:
        for name in node.output:
            if name and name not in known:
                known.add(name)
                exposed.graph.output.add().name = name
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(exposed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def judge_model(
    proto: onnx.ModelProto, facts: Facts, model: ir.Model, inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int]
) -> Judge:
    """Hold the facts of all values of the main graph against a run of the model."""
    judge = Judge(facts, sizes)
    for value in model.graph.inputs:
        judge.judge(value, inputs[value.name or ""])
    real = run_exposed(proto, inputs)
    for node in model.graph:
        for value in node.outputs:
            if value.name and isinstance(real[value.name], np.ndarray | np.generic):
                judge.judge(value, np.asarray(real[value.name]))
    return judge
