"""The benchmark of rules: which models it tries next, what it remembers, and what counts as evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from benchmarks.rules import trial
from benchmarks.rules.corpus import Sample, samples
from benchmarks.rules.search import Search
from benchmarks.rules.summary import COSTS, IDLE, MEASURED, NEEDED, NEVER, SAVES, UNTRIED, evidence, table
from benchmarks.rules.versions import rules_to_judge
from tests.helpers.graphs import parsed

PRICES = {"executed": 10, "microseconds": 100.0}


def weight(executed: int, **more: Any) -> dict[str, Any]:
    return {"executed": executed, "microseconds": 10.0 * executed, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("small", "other", "large"):
        (tmp_path / f"{name}.onnx").write_bytes(name.encode())
    return tmp_path


def searched(folder: Path, **rows: dict[str, Any]) -> Search:
    """A search over models with rows: `rules` that fire, and `without` by rule."""
    found = [Sample(name, "standard" if name == "test" else "exports", folder / f"{name}.onnx") for name in rows]
    whole = {
        sample.name: {
            "source": sample.source, "seconds": number, "all": PRICES, "passes": {}, "without": {},
            "hash": "" if sample.name == "test" else sample.hash(),
            "versions": dict.fromkeys(rows[sample.name]["rules"], "v"), **rows[sample.name],
        }
        for number, sample in enumerate(found)
    }  # fmt: skip
    return Search(found, {"rule": "v", "other": "v"}, whole, lambda name, row: None)


def left(executed: int, version: str = "v", **more: Any) -> dict[str, Any]:
    return {"rule": weight(executed, version=version, **more)}


def test_a_rule_is_tried_in_the_cheapest_model_and_no_more_once_it_saves(folder: Path) -> None:
    rows = {"small": {"rules": {"rule": 1}}, "large": {"rules": {"rule": 3}}}
    search = searched(folder, **rows)
    assert search.next_model("rule") == search.samples[0]
    assert search.next_model("other") is None
    search.rows["small"]["without"] = left(10)
    assert search.next_model("rule") == search.samples[1]
    search.rows["small"]["without"] = left(12)
    assert search.next_model("rule") is None


def test_tests_of_the_standard_and_known_architectures_come_last(folder: Path) -> None:
    fires = {"rules": {"rule": 1}}
    search = searched(folder, test=fires, small=fires, large=fires)
    assert search.next_model("rule") == search.samples[1]
    search.rows["small"]["without"] = left(10)
    assert search.next_model("rule") == search.samples[2]
    search.rows["large"]["without"] = left(10)
    assert search.next_model("rule") == search.samples[0]
    search.tries = 2
    assert search.next_model("rule") is None


def test_a_rule_whose_file_changed_is_tried_again(folder: Path) -> None:
    search = searched(folder, small={"rules": {"rule": 1}, "without": left(12, version="older")})
    assert search.next_model("rule") is not None
    assert search._holds(search.samples[0])
    search.rows["small"]["versions"] = {"rule": "older"}
    assert not search._holds(search.samples[0])
    search.rows["small"] |= {"versions": {}, "hash": "of another model"}
    assert not search._holds(search.samples[0])


def test_rules_without_effect_are_left_out_together_the_next_time(folder: Path) -> None:
    idle = {"a": weight(10, version=""), "b": weight(10, version=""), "costs": weight(9, version="")}
    search = searched(folder, small={"rules": {}, "without": idle})
    assert search._groups(["costs", "a", "fresh", "b"]) == [["costs"], ["fresh"], ["a", "b"]]


def test_kinds_of_evidence(folder: Path) -> None:
    def kind(**more: Any) -> dict[str, Any]:
        row = {"rules": {"rule": 2}, **more}
        return evidence(searched(folder, small=row), ["rule"], {"rule": more.pop("speedup", 0.0)})["rule"]

    assert kind(without=left(12)) == {
        "kind": SAVES, "model": "small", "executed": 1.2, "microseconds": 1.2, "models": 1, "sites": 2,
    }  # fmt: skip
    assert kind(without={"rule": {"error": "no result", "version": "v"}})["kind"] == SAVES
    assert kind(without=left(10), speedup=1.5)["kind"] == MEASURED
    needed = kind(without=left(10, lost={"other": 1}))
    assert (needed["kind"], needed["lost"]) == (NEEDED, ["other"])
    assert kind(without=left(10, lost={"other": 1}, together=3))["kind"] == IDLE
    assert kind(without=left(9))["kind"] == COSTS
    assert kind()["kind"] == UNTRIED
    assert kind(rules={})["kind"] == NEVER
    assert evidence(searched(folder, small={"rules": {}}), ["rule"], {})["rule"] == {
        "kind": NEVER, "models": 0, "sites": 0,
    }  # fmt: skip


def test_the_table_begins_with_the_largest_saving(folder: Path) -> None:
    rows = {
        "a": {"kind": SAVES, "executed": 1.1, "models": 1, "sites": 1},
        "b": {"kind": SAVES, "executed": 1.2, "models": 1, "sites": 1},
    }
    lines = [*table({**rows, "c": {"kind": NEVER, "models": 0, "sites": 0}})][1:]
    assert [line.split(" ")[1] for line in lines] == ["b", "a", "c"]


def test_exports_of_a_folder_are_samples_that_come_behind_golden_models(folder: Path) -> None:
    found = samples(["exports", "golden"], [folder])
    assert [one.source for one in found[-3:]] == ["exports"] * 3
    assert [one.name for one in found[-3:]] == ["large", "other", "small"]


RECIPROCAL_OF_EXP = """<ir_version: 10, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) <float one = {1}> {
    a = Neg(x)
    b = Exp(a)
    c = Add(b, one)
    y = Reciprocal(c)
}"""


def test_a_model_costs_more_without_the_rule_that_fuses_it(tmp_path: Path) -> None:
    path, rule = tmp_path / "sigmoid.onnx", "sigmoid.reciprocal_of_one_plus_exp"
    ir.save(parsed(RECIPROCAL_OF_EXP), path)
    row = trial.whole(trial.Task(path, None))
    assert row["rules"] == {rule: 1} and row["original"]["executed"] == 4 and row["all"]["executed"] == 1
    other = "gelu.from_erf_form"
    found = trial.without(trial.Task(path, None, None, row, [[rule], [rule, other]]))
    assert found[rule]["executed"] == 4 and found[other]["executed"] == 1, "a group that costs more is taken apart"


def test_only_rules_that_are_applied_unasked_are_judged() -> None:
    judged = rules_to_judge()
    assert {"gelu.from_erf_form", "attention.sdpa"} <= judged.keys()
    assert (
        not {
            "glu.activation_times_x_to_function",
            "focal.to_sigmoid_focal_loss_function",
            "qdq.hoist_quantize_above_reshape",
            "matmul_form.gemm_to_matmul_add",
        }
        & judged.keys()
    )
