"""A target is a folder: a toy one is used by optimize, verify, bench and explain, and nothing found on the CPU binds it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from graphs import operators

import ortfuse
from ortfuse.errors import RuleError, TargetError, VerificationError
from ortfuse.pipeline import load_catalogue
from ortfuse.runtime import memory_footprint
from ortfuse.runtime.current_execution_target import executing_for, execution_target
from ortfuse.runtime.session import Session
from ortfuse.runtime.strict_session import StrictSession
from ortfuse.targets import (
    ProviderOption,
    Target,
    TargetSpec,
    default_spec,
    known_targets,
    load_target,
    registry,
    spec_of,
)
from ortfuse.tuning.rule_costs import Candidate, measure_rule_costs
from ortfuse.tuning.rule_costs.speedup import Measurement
from ortfuse.tuning.search_space import Space

ROOT = Path(__file__).parents[2]

DECLARATION = '''
from pathlib import Path

from ortfuse.targets import KnownBug, TargetSpec
from ortfuse.targets.kernel_constraints import input_limit, shape_words


class ToyBug(KnownBug):
    """The bugs of the toy."""

    LOSES_SIGN_OF_ZERO = "loses the sign of a zero"


def takes_matrices(node, facts):
    """Refuse operands that are no matrices."""
    shape = facts.shape(node.inputs[0])
    return None if shape is not None and len(shape) == 2 else input_limit(node, 0, "A", shape_words(shape), "a toy matrix")


TARGET = TargetSpec(
    name="toy",
    provider="ToyExecutionProvider",
    folder=Path(__file__).parent,
    kernels="stored",
    constraints={("", "Gemm"): takes_matrices, ("", "Gelu"): takes_matrices},
    known_bugs=frozenset(ToyBug),
    runs_on=("CPUExecutionProvider",),
    session_settings={"session.set_denormal_as_zero": "0"},
)
'''

DECOMPOSITION = """
from ortfuse.rewrite import Exactness, RuleTest, Rule
from ortfuse.rewrite.pattern import op, var

x = var("x")
RULES = [
    Rule(
        name="toy.reciprocal_to_div",
        pattern=op.Reciprocal(x),
        replace=op.Div(1.0, x),
        exactness=Exactness.ROUNDING,
        source="test",
        test=RuleTest(shapes={"x": "n 3"}),
    )
]
"""

PASSES = "canonicalize, target_decompositions, dce"
KERNELS = ("Add", "Cast", "Constant", "Div", "Erf", "Gelu", "LpNormalization", "Mul", "Reciprocal", "Relu", "Sqrt")

MODEL = """<ir_version: 10, opset_import: ["": 20]> g (float[2, 3, 4] x) => (float[2, 3, 4] y) {
    r = Reciprocal(x)  y = LpNormalization <axis = 1> (r) }"""

GELU = """<ir_version: 10, opset_import: ["": 20]> g (float[%s] x) => (float[%s] y)
    <float two = {1.4142135}, float one = {1.0}, float half = {0.5}> {
    s = Div(x, two)  e = Erf(s)  p = Add(e, one)  m = Mul(x, p)  y = Mul(m, half) }"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The kernels of the CPU for a few operators, under another name."""
    path = tmp_path_factory.mktemp("tables") / "cpu.json"
    Target().to_table(path)
    table: dict[str, Any] = json.loads(path.read_text())
    kept = [one for one in table["operators"] if not one["domain"] and one["name"] in KERNELS]
    return json.dumps({**table, "provider": "ToyExecutionProvider", "runtime": "toy 1", "operators": kept})


@pytest.fixture
def folder(kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(registry, "_loaded", {})
    place = tmp_path / "toy"
    (place / "decompositions").mkdir(parents=True)
    (place / "__init__.py").write_text(DECLARATION)
    (place / "decompositions" / "reciprocal.py").write_text(DECOMPOSITION)
    (place / "costs.json").write_text(
        json.dumps({"source": "a toy", "speedups": {"gelu.from_erf_form": {"x 1x128x768": 0.5}}})
    )
    (place / "kernels.json").write_text(kernels)
    return place


def test_a_folder_is_a_target_by_its_path_its_short_name_and_its_provider(folder: Path) -> None:
    spec = load_target(folder)
    assert load_target(folder) is spec, "a folder that did not change is read once"
    assert spec_of("toy") is spec is spec_of("ToyExecutionProvider")
    assert known_targets() == (*registry.built_in(), spec)
    target = Target("toy")
    assert (target.provider, target.table.runtime, len(target.table.operators)) == ("ToyExecutionProvider", "toy 1", 11)
    assert [bug.name for bug in target.quirks] == ["LOSES_SIGN_OF_ZERO"]
    assert target.costs.speedups.keys() == {"gelu.from_erf_form"}


def test_optimize_verifies_measures_and_explains_on_a_toy(folder: Path, tmp_path: Path) -> None:
    """Its own decomposition fires, and that of the CPU, which would make a LpNormalization of other operators, does not."""
    model = ir.from_onnx_text(MODEL)
    assert "LpNormalization" not in operators(ortfuse.optimize(model, passes=PASSES).model)
    found = ortfuse.optimize(
        model, target=folder, verify=True, bench=True, rounds=1, bench_budget=0.0, explain=["toy"], passes=PASSES, force={"lpnorm": "Div"},
        output=tmp_path / "result.onnx",
    )  # fmt: skip
    assert operators(found.model) == ["Div", "LpNormalization"]
    assert found.verdict is not None and found.verdict.ok
    assert found.latencies
    assert found.session.values() == {"session.set_denormal_as_zero": "0"}
    assert found.explanation is not None
    assert [fused.rule for fused in found.explanation.fused] == ["toy.reciprocal_to_div"]
    assert "lpnorm.decompose_lpnorm is for the target cpu, and not for toy" in "\n".join(found.forced[0].lines())


@pytest.mark.parametrize(("shape", "made"), [("2, 3", "Gelu"), ("2, 3, 4", "Erf")])
def test_a_constraint_of_a_toy_refuses_in_its_own_words(shape: str, made: str, folder: Path) -> None:
    model = ir.from_onnx_text(GELU % (shape, shape))
    found = ortfuse.optimize(model, target=str(folder), explain=["gelu"], force={"gelu": "Gelu"})
    assert made in operators(found.model)
    said = "\n".join(missed.refusal.reason for missed in found.explanation.missed) if found.explanation else ""
    assert ("a toy matrix" in said) == (made == "Erf")


def test_a_cost_of_a_toy_decides(folder: Path) -> None:
    found = ortfuse.optimize(ir.from_onnx_text(GELU % ("2, 3", "2, 3")), target=folder)
    assert "Gelu" not in operators(found.model)
    assert [choice.rule for choice in found.report.choices] == ["gelu.from_erf_form"]


def test_models_are_executed_with_the_providers_of_the_target_that_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortfuse.runtime import session

    seen = []
    monkeypatch.setattr(session, "opened", lambda source, weights, asked, isolated: seen.append(asked))
    spec, model = load_target(folder), ir.from_onnx_text(MODEL)
    for block in (spec, spec_of("NotInstalledExecutionProvider")):
        with executing_for(block), pytest.raises(Exception, match="input_names"):
            session.Session(model)
    assert [one.providers for one in seen] == [("CPUExecutionProvider",)] * 2
    assert [dict(one.others) for one in seen] == [{"session.set_denormal_as_zero": "0"}, {}]
    assert execution_target() is default_spec()


RUNNER = """
from pathlib import Path

LOG = Path(__file__).with_name("runs.txt")


def session_class(base):
    class Toy(base):
        def run(self, inputs, only=None, limit=None):
            with LOG.open("a") as file:
                print(*sorted(inputs), self._session.get_providers()[0], file=file)
            return [-result for result in super().run(inputs, only, limit)]

    return Toy
"""


def test_the_runner_of_a_target_runs_its_models(folder: Path, tmp_path: Path) -> None:
    """It verifies, measures latency and memory, loads results; constants are computed by the default target."""
    (folder / "runner.py").write_text(RUNNER)
    (folder / "__init__.py").write_text(DECLARATION.replace("runs_on=", 'runner="runner.py", runs_on='))
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 20]> g (float[2, 3] x) => (float[2, 3] y)
        <float two = {2.0}> { four = Add(two, two)  y = Mul(x, four) }"""
    )
    found = ortfuse.optimize(
        model, target=folder, verify=True, bench=True, rounds=1, bench_budget=0.0, passes="canonicalize",
        output=tmp_path / "result.onnx",
    )  # fmt: skip
    assert found.verdict is not None and found.verdict.ok
    assert found.latencies
    assert [float(tensor.const_value.numpy()) for tensor in found.model.graph.initializers.values()] == [4.0]
    runs = (folder / "runs.txt").read_text().splitlines()
    assert set(runs) == {"x CPUExecutionProvider"}
    with executing_for(load_target(folder)):
        assert Session(found.model).run({"x": np.ones((2, 3), np.float32)})["y"].max() == -4
        assert memory_footprint.footprint(found.model, {"x": np.ones((2, 3), np.float32)}) > 0
    assert len((folder / "runs.txt").read_text().splitlines()) == len(runs) + 2


TOLERANT_RUNNER = """
import numpy as np


def session_class(base):
    class Toy(base):
        def run(self, inputs, only=None, limit=None):
            try:
                return super().run(inputs, only, limit)
            except Exception:
                return [np.zeros((2, 1), np.float32)]

    return Toy
"""


def test_inputs_for_which_a_model_is_not_defined_count_on_no_target(folder: Path) -> None:
    """The toy computes something where sizes do not fit, as kernels of accelerators do for indices out of range."""
    (folder / "runner.py").write_text(TOLERANT_RUNNER)
    (folder / "__init__.py").write_text(DECLARATION.replace("runs_on=", 'runner="runner.py", runs_on='))
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 20]> g (float[a, 3] x, float[b, 3] w) => (float[c, 3] y) { y = Add(x, w) }"""
    )
    with executing_for(load_target(folder)):
        session = StrictSession(model)
        fitting = {name: np.ones((2, 3), np.float32) for name in "xw"}
        assert session.run(fitting)["y"].max() == 2
        with pytest.raises(VerificationError, match="Add"):
            session.run({**fitting, "w": np.ones((5, 3), np.float32)})
        assert Session(model).run({**fitting, "w": np.ones((5, 3), np.float32)})["y"].max() == 0


def test_a_profile_is_taken_on_the_target_that_is_asked(folder: Path) -> None:
    (folder / "runner.py").write_text(RUNNER)
    (folder / "__init__.py").write_text(DECLARATION.replace("runs_on=", 'runner="runner.py", runs_on='))
    found = ortfuse.profile(ir.from_onnx_text(MODEL), target=folder, rounds=1, remedies=False)
    assert found.kernels
    assert set((folder / "runs.txt").read_text().splitlines()) == {"x CPUExecutionProvider"}


CREATING_RUNNER = """
def session_class(base):
    class Toy(base):
        def _create(self, source, options, arguments):
            return super()._create(source, options, {**arguments, "providers": ["CPUExecutionProvider"]})

    return Toy
"""


def test_a_session_of_a_result_is_created_by_the_runner(folder: Path, tmp_path: Path) -> None:
    """The runner knows how to reach a provider that the runtime does not know by its name."""
    (folder / "runner.py").write_text(CREATING_RUNNER)
    declared = DECLARATION.replace("runs_on=(", 'runner="runner.py", runs_on=("ToyExecutionProvider", ')
    (folder / "__init__.py").write_text(declared)
    load_target(folder)
    ir.save(ir.from_onnx_text(MODEL), tmp_path / "model.onnx")
    opened = ortfuse.session(tmp_path / "model.onnx", {"providers": ["ToyExecutionProvider"]})
    assert opened.get_providers() == ["CPUExecutionProvider"]
    (folder / "runner.py").write_text("def session_class(base):\n    return object\n")
    with pytest.raises(VerificationError, match="does not run models in the Python package of ONNX Runtime"):
        ortfuse.session(tmp_path / "model.onnx", {"providers": ["ToyExecutionProvider"]})


def test_a_verification_elsewhere_says_so(folder: Path) -> None:
    (folder / "__init__.py").write_text(DECLARATION.replace('runs_on=("CPUExecutionProvider",),', ""))
    for asked, said in (({"verify": True}, True), ({}, False)):
        found = ortfuse.optimize(ir.from_onnx_text(MODEL), target=folder, **asked)  # type: ignore[arg-type]
        told = [note for note in found.report.notes if "no model runs for the target toy here" in note]
        assert bool(told) == said


def test_no_session_is_opened_for_a_target_that_cannot_run_here() -> None:
    with pytest.raises(TargetError, match=r"target Far\w+ here: its folder names no provider"):
        spec_of("FarExecutionProvider").session_providers()
    with pytest.raises(TargetError, match="no models run for the target cuda here: it needs a GPU of NVIDIA"):
        replace(spec_of("cuda"), runs_on=()).session_providers()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "declares no target"),
        ("1 / 0", "ZeroDivisionError"),
        (DECLARATION.replace('name="toy"', 'name="cpu"'), "choose others"),
    ],
)
def test_a_folder_that_is_no_target_is_refused(text: str, said: str, folder: Path) -> None:
    (folder / "__init__.py").write_text(text)
    with pytest.raises(TargetError, match=said):
        load_target(folder)
    (folder / "__init__.py").unlink()
    with pytest.raises(TargetError, match="is no folder of a target"):
        Target(load_target(folder))


def test_rules_bound_to_the_cpu_are_for_no_other_target() -> None:
    bound = load_catalogue().for_others("toy")
    assert {"lpnorm.decompose_lpnorm", "gemv.matmul_by_vector"} <= bound.keys()
    assert bound["lpnorm.decompose_lpnorm"] == ("cpu",)
    assert not [name for name, targets in load_catalogue().for_others("cpu").items() if "cpu" in targets]


def test_only_folders_of_targets_name_the_cpu_provider() -> None:
    """Another target may, if the CPU provider stands in for it."""
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("ortfuse", "patterns")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".toml", ".json", ".html", ".js") and "CPUExecutionProvider" in path.read_text()
    ]
    assert [name for name in found if not re.match(r"ortfuse/targets/\w+/", name)] == []
    assert "ortfuse/targets/cpu/__init__.py" in found


def test_only_the_registry_finds_the_folders_of_targets() -> None:
    """No code imports the folder of a target by name but folders of targets."""
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("ortfuse", "patterns")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"(from|import) ortfuse\.targets\.cpu", path.read_text())
    ]
    assert [name for name in found if not re.match(r"ortfuse/targets/\w+/", name)] == []
    assert "ortfuse/targets/cpu/__init__.py" in found


def test_calibrate_measures_rules_of_a_toy_for_a_toy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []

    def fake(candidate: Candidate, threads: int) -> Measurement:
        seen.append((candidate.rule.name, execution_target().name))
        return Measurement(2.0, (1.9, 2.1))

    monkeypatch.setattr(measure_rule_costs, "speedup", fake)
    file = tmp_path / "calibration.json"
    found = ortfuse.calibrate(only=["gelu.from_erf_form"], target=folder, budget=0, file=file)
    assert (found.runtime, found.measured, seen) == ("toy 1", 1, [("gelu.from_erf_form", "toy")] * 3)
    assert [key.split(", ")[1] for key in json.loads(file.read_text())] == ["ToyExecutionProvider"]
    with pytest.raises(RuleError, match="no rule or family"):
        ortfuse.calibrate(only=["lpnorm.decompose_lpnorm"], target=folder)
    with pytest.raises(TargetError, match="FarExecutionProvider"):
        ortfuse.calibrate(target=TargetSpec(name="far", provider="FarExecutionProvider"))


def test_tune_searches_the_settings_of_the_target_with_its_providers(folder: Path) -> None:
    spec = replace(load_target(folder), tuned_settings={"session.toy": ("0", "1")})
    found = Space.of(
        ["auto"], forced={}, providers=["CPUExecutionProvider"], threads=1, processors=1, denormals=False, settings={}, target=spec
    )  # fmt: skip
    assert found.dimensions == {"model": ("auto",), "session.toy": ("0", "1")}


def test_tune_searches_options_of_the_provider_where_they_matter(folder: Path) -> None:
    """Options go with the first provider of the target; other providers do not have them."""
    option = ProviderOption(("0", "1"), frozenset({"Conv"}))
    spec = replace(load_target(folder), runs_on=("Toy", "CPU"), tuned_options={"prefer_nhwc": option})

    def space(*operators: str) -> Space:
        return Space.of(
            ["auto"], forced={}, providers=["Toy", "CPU"], threads=1, processors=1, denormals=False, settings={},
            operators=operators, target=spec,
        )  # fmt: skip

    assert "option.prefer_nhwc" not in space("MatMul").dimensions
    found = space("Conv")
    usual = found.usual
    assert (usual["option.prefer_nhwc"], found.settings(usual)) == ("0", {})
    chosen = {**usual, "option.prefer_nhwc": "1"}
    assert found.settings(chosen) == {"providers": [("Toy", {"prefer_nhwc": "1"}), "CPU"]}
    elsewhere = {**chosen, "provider": "CPU"}
    assert found.settings(elsewhere) == {"providers": ["CPU", "Toy"]}
    assert found.matters("option.prefer_nhwc", chosen)
    assert not found.matters("option.prefer_nhwc", elsewhere)
