from __future__ import annotations

import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from ortfuse.analysis.facts import Facts
from ortfuse.io.load_and_save import load
from ortfuse.pipeline import registry
from ortfuse.pipeline.built_in_passes import BUILT_IN
from ortfuse.pipeline.pipeline_text import Call
from ortfuse.targets import Target
from ortfuse.transforms.context import Context
from ortfuse.transforms.lazily_loaded_pass import DeferredPass, PassEntry

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
MODELS = sorted(GOLDEN.glob("*.onnx"), key=lambda file: file.stat().st_size)[:40:4]
PASS = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Counting:
    name = "counting"
    def run(self, context):
        return len(list(context.model.graph))
"""
HEADER = '<ir_version: 10, opset_import: ["" : 20]>'
PLAIN = HEADER + "agraph (bool c, float[2] x) => (float[2] y) { y = Relu(x) }"
NESTED = (
    HEADER
    + """agraph (bool c, float[2] x) => (float[2] y) { y = If(c) <
    then_branch = one () => (float[2] a) { a = Exp(x) }, else_branch = other () => (float[2] b) { b = Log(x) }> }"""
)


def context_of(model: ir.Model) -> Context:
    return Context(model, Facts(model), Target())


def parsed(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def test_the_table_has_the_names_of_the_passes() -> None:
    assert [entry.loaded().name for entry in BUILT_IN.values()] == [*BUILT_IN]


@pytest.mark.parametrize("file", MODELS, ids=lambda file: file.stem)
def test_a_pass_does_nothing_without_the_operators_that_it_needs(file: Path) -> None:
    context = context_of(load(file))
    idle = [entry for entry in BUILT_IN.values() if entry.needs and not entry.may_act_on(context.model)]
    assert idle
    for entry in idle:
        assert entry.loaded()().run(context) == 0, entry.name
        assert not context.notes


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PassEntry:
    name = f"counting_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PASS)
    monkeypatch.syspath_prepend(tmp_path)
    return PassEntry("counting", name, "Counting", (frozenset({"Exp", "Sin"}), frozenset({"Log"})))


def test_a_pass_is_loaded_when_a_graph_has_an_operator_of_each_group(entry: PassEntry) -> None:
    made = DeferredPass(entry)
    assert made.name == "counting"
    assert made.run(context_of(parsed(PLAIN))) == 0
    assert made.run(context_of(parsed(PLAIN.replace("Relu", "Exp")))) == 0
    assert entry.home not in sys.modules
    assert made.run(context_of(parsed(NESTED))) == 1
    assert made.run(context_of(parsed(PLAIN))) == 1, "what is loaded runs over all models"


def test_a_pass_with_options_is_made_at_once() -> None:
    assert isinstance(registry.make_pass(Call("unroll_loops", {})), DeferredPass)
    made = registry.make_pass(Call("unroll_loops", {"runs": 3}))
    assert type(made).__name__ == "UnrollLoops"
