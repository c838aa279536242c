"""What the events of the runtime's profiler say, and which nodes of the model executed nodes stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from ortfuse.profiling.node_origins import origins
from ortfuse.profiling.profiler_trace import WARMUP, Calls, executed, traces
from ortfuse.profiling.roofline import Work, works
from ortfuse.runtime.node_naming import name_all_nodes


def _kernel(name: str, start: int, took: int, operator: str = "Relu") -> dict[str, Any]:
    args = {"op_name": operator, "provider": "CPU", "input_type_shape": [{"float": [2, 3]}], "output_type_shape": []}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": took, "args": args}


def _run(start: int, took: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": start, "dur": took, "args": {}}


def test_runs_for_warming_up_do_not_count() -> None:
    events = []
    for number in range(WARMUP + 3):
        took = 100 if number < WARMUP else 10 + number - WARMUP
        events += [_run(1000 * number, 500), _kernel("a", 1000 * number + 1, took)]
    (node,), runs, between = executed(events)
    assert runs == pytest.approx([5e-4] * 3)
    assert between == pytest.approx([4.9e-4, 4.89e-4, 4.88e-4]), "what each run has besides its nodes"
    assert (node.name, node.operator, node.calls) == ("a", "Relu", 1)
    assert node.seconds == pytest.approx(11e-6), "the median"
    assert node.sizes == (Calls(3, (("float", (2, 3)),), ()),)


def test_a_loop_has_only_the_time_that_its_body_does_not() -> None:
    once = [
        _kernel("loop", 10, 100, "Loop"),
        _kernel("body", 20, 30),
        _kernel("body", 60, 30),
        _kernel("after", 120, 5),
    ]
    events = []
    for number in range(WARMUP + 1):
        events.append(_run(1000 * number, 200))
        events += [{**event, "ts": event["ts"] + 1000 * number} for event in once]
    nodes, *_ = executed(events[::-1])
    found = {node.name: (node.calls, round(node.seconds * 1e6)) for node in nodes}
    assert found == {"loop": (1, 40), "body": (2, 60), "after": (1, 5)}


def test_a_body_may_start_in_the_microsecond_in_which_its_node_does() -> None:
    events = []
    for number in range(WARMUP + 1):
        start = 1000 * number
        events += [_run(start, 200), _kernel("body", start + 10, 30), _kernel("if", start + 10, 40, "If")]
    nodes, *_ = executed(events)
    assert {node.name: round(node.seconds * 1e6) for node in nodes} == {"if": 10, "body": 30}


def test_what_grows_in_a_loop_is_counted_at_each_of_its_sizes() -> None:
    model = ir.from_onnx_text('<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }')
    name_all_nodes(model)
    (node,) = model.graph
    events = []
    for number in range(WARMUP + 2):
        start = 1000 * number
        events.append(_run(start, 200))
        for size in (1, 2, 3):
            event = _kernel(node.name or "", start + 20 * size, 5)
            told = [{"float": [size]}]
            events.append({**event, "args": {**event["args"], "input_type_shape": told, "output_type_shape": told}})
    nodes, *_ = executed(events)
    (seen,) = nodes
    assert [calls.count for calls in seen.sizes] == [2, 2, 2] and seen.calls == 3
    assert works(nodes, model)[seen.name] == Work(1 + 2 + 3, 2 * 4 * (1 + 2 + 3))


def _model(text: str) -> ir.Model:
    header = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "com.microsoft.nchwc": 1]>'
    model = ir.from_onnx_text(f"{header} g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) {text}")
    name_all_nodes(model)
    return model


CONVOLUTION = "{ w = Constant<value = float[1] {1.0}>() k = Neg(w) c = Conv(x, k) y = Relu(c) }"


def test_what_no_executed_node_computes_was_fused_with_what_follows() -> None:
    model = _model(CONVOLUTION)
    found = origins(model, _model("{ y = com.microsoft.FusedConv(x, k) }"))
    ((_, origin),) = found.items()
    assert origin.made == "fused"
    assert [name.partition("#")[0] for name in origin.nodes] == ["Relu", "Conv"], "what is constant was computed before"


def test_names_derived_by_the_runtime_are_understood_and_its_reorderings_are_insertions() -> None:
    model = _model("{ c = Conv(x, x) y = Relu(c) }")
    executed_graph = _model(
        "{ r = com.microsoft.nchwc.ReorderInput(x) c_nchwc = com.microsoft.nchwc.Conv(r, r)"
        " t = com.microsoft.nchwc.ReorderOutput(c_nchwc) y = Relu(t) }"
    )
    found = list(origins(model, executed_graph).values())
    assert [one.made for one in found] == ["inserted", "", "inserted", ""]
    assert [one.nodes[0].partition("#")[0] for one in found] == ["Conv", "Conv", "Relu", "Relu"], (
        "or those of neighbours"
    )


def test_a_plain_kernel_computes_nothing_else_so_that_what_stands_before_it_was_fused_further_up() -> None:
    model = _model("{ c = Conv(x, x) s = Add(c, x) t = Cast<to = 1>(s) y = MaxPool<kernel_shape = [1, 1]>(t) }")
    executed_graph = _model(
        "{ c_nchwc = com.microsoft.nchwc.Conv(x, x, x) y = MaxPool<kernel_shape = [1, 1]>(c_nchwc) }"
    )
    fused, pool = origins(model, executed_graph).values()
    assert [name.partition("#")[0] for name in fused.nodes] == ["Conv", "Add"]
    assert (fused.made, pool.made) == ("fused", "")
    assert [name.partition("#")[0] for name in pool.nodes] == ["MaxPool", "Cast"], "which was taken out"


def test_a_convolution_that_is_called_after_its_product_adds_and_activates_too() -> None:
    model = _model("{ c = Conv(x, x) s = Add(c, x) r = Relu(s) d = Conv(r, x) y = Relu(d) }")
    executed_graph = _model(
        "{ c_nchwc = com.microsoft.nchwc.Conv<activation = 'Relu'>(x, x, x, x)"
        " y_nchwc = com.microsoft.nchwc.Conv<activation = 'Relu'>(c_nchwc, x) }".replace("'", '"')
    )
    found = list(origins(model, executed_graph).values())
    names = [[name.partition("#")[0] for name in one.nodes] for one in found]
    assert names == [["Conv", "Add", "Relu"], ["Relu", "Conv"]]
    assert [one.made for one in found] == ["fused", "fused"]


def test_sizes_that_are_known_were_computed_before() -> None:
    model = _model("{ s = Shape(x) k = Gather(s, s) r = Relu(x) y = Reshape(r, k) }")
    found = list(origins(model, _model("{ r = Relu(x) y = Reshape(r, k) }")).values())
    assert [len(one.nodes) for one in found] == [1, 1]


def test_every_node_gets_a_name_of_its_own() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool p) => (float[2] y)
        { y = If(p)<then_branch = t () => (float[2] a) { a = Relu(x) }, else_branch = e () => (float[2] b) { b = Relu(x) }> }"""
    )
    name_all_nodes(model)
    names = [node.name for node in model.graph.all_nodes()]
    assert len(set(names)) == len(names) == 3


def test_models_take_turns_under_the_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, int]] = []

    class Recorded:
        def __init__(self, model: ir.Model, *, threads: int, profile: Path, settings: object) -> None:
            self.name, self.log = model.graph.name or "", profile

        def timed(self, inputs: object, runs: int) -> list[float]:
            ran.append((self.name, runs))
            return [1e-2] * runs

        def end_profile(self) -> Path:
            self.log.write_text(json.dumps(turns(sum(runs for name, runs in ran if name == self.name))))
            return self.log

    def turns(count: int) -> list[dict[str, Any]]:
        return [
            event for number in range(count) for event in (_run(100 * number, 50), _kernel("r", 100 * number + 1, 5))
        ]

    monkeypatch.setattr("ortfuse.profiling.profiler_trace.Session", Recorded)
    text = '<ir_version: 10, opset_import: ["": 21]> {} (float[2] x) => (float[2] y) {{ y = Relu(x) }}'
    models = [ir.from_onnx_text(text.format(name)) for name in "ab"]
    found = traces(models, {}, runs=3)
    assert ran == [("a", WARMUP), ("a", 3 + 1), ("b", WARMUP), ("b", 3 + 1)] * 3, (
        "three runs are 30 ms, and then one counts"
    )
    assert [(one.runs, [node.operator for node in one.nodes]) for one in found] == [(3, ["Relu"])] * 2
