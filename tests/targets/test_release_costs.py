"""Costs of rules by release of the runtime: which table decides for a result that an older release runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from rewriting import ops

import ortfuse
from ortfuse.errors import TargetError
from ortfuse.ir.dims import symbol
from ortfuse.options import Options
from ortfuse.pipeline import PassManager
from ortfuse.targets import CostTable, Target, calibrated_speedups, default_spec, resolve_target, rule_speedups
from ortfuse.targets.joint_target import JointTarget
from ortfuse.targets.release_kernel_tables import table_of_release
from ortfuse.targets.rule_speedups import Measured, shipped_tables

GOLDEN = Path(__file__).parents[2] / "golden" / "models"

LOWERING = "attention.lower_to_multi_head_attention"

ATTENTION = """<ir_version: 10, opset_import: ["": 23]>
    g (float[1, {length}, 768] q, float[1, {length}, 768] k, float[1, {length}, 768] v) => (float[1, {length}, 768] y) {{
        y = Attention<q_num_heads = 12, kv_num_heads = 12, is_causal = {causal}>(q, k, v)
    }}"""


def _file(folder: Path, *tables: dict[str, Any]) -> Path:
    path = folder / "costs.json"
    path.write_text(json.dumps({"tables": [{"source": "", **one} for one in tables]}))
    return path


def _speedup(table: CostTable, rule: str) -> float | None:
    found = table.estimate(rule, {"x": (1, 16)}.get)
    return None if found is None else round(found.speedup, 3)


@pytest.mark.parametrize(
    ("release", "fused"), [((1, 16), 2.0), ((1, 17), 0.5), ((1, 19), 0.5), ((1, 20), 2.0), ((1, 32), 2.0), ((), 2.0)]
)
def test_the_table_of_a_release_is_asked_before_that_of_the_newest(
    release: tuple[int, ...], fused: float, tmp_path: Path
) -> None:
    path = _file(
        tmp_path,
        {"speedups": {"a.fusion": {"x 1x16": 2.0}, "b.fusion": {"x 1x16": 3.0}}},
        {"speedups": {"a.fusion": {"x 1x16": 0.5}}, "releases": ["1.17", "1.19"]},
        {"speedups": {}, "releases": ["1.20", "1.30"]},
    )
    table = CostTable.read(path, release=release)
    assert (_speedup(table, "a.fusion"), _speedup(table, "b.fusion")) == (fused, 3.0)


@pytest.mark.parametrize(("processor", "speedup"), [("{} FAST", 2.0), ("z80", 0.5)])
def test_a_release_measured_on_another_architecture_counts_at_its_worst(
    processor: str, speedup: float, tmp_path: Path
) -> None:
    rows = {"x 1x16": 2.0, "x 1x1024": 0.5}
    processor = processor.format(rule_speedups.processor_kind().partition(" ")[0])
    path = _file(
        tmp_path,
        {"speedups": {"a.fusion": {"x 1x16": 2.0}}},
        {"speedups": {"a.fusion": rows}, "releases": ["1.17", "1.19"], "processor": processor},
    )
    assert _speedup(CostTable.read(path, release=(1, 18)), "a.fusion") == speedup


@pytest.mark.parametrize("releases", [["1.20", "1.19"], ["1.20"], ["old", "new"]])
def test_releases_that_are_none_are_refused(releases: list[str], tmp_path: Path) -> None:
    path = _file(tmp_path, {"speedups": {}}, {"speedups": {}, "releases": releases})
    with pytest.raises(TargetError, match=r"costs\.json is no cost table"):
        CostTable.read(path)


def test_a_symbol_is_one_size_wherever_it_stands() -> None:
    length, other = symbol("length"), symbol("other")
    rows = [Measured.parse(text, 1.0) for text in ("q 1x512x768, k 1x512x768", "q 1x1x768, k 1x512x768")]
    alike, apart = ({"q": (1, length, 768), "k": (1, keys, 768)} for keys in (length, other))
    assert rows[0].distance(alike.get) == 0.0 < rows[1].distance(alike.get)
    assert rows[0].distance(apart.get) == rows[1].distance(apart.get) == 0.0


@pytest.fixture
def calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder."""
    monkeypatch.setattr(calibrated_speedups, "calibration_file", lambda: tmp_path / "calibration.json")
    calibrated_speedups.costs_here.cache_clear()
    yield tmp_path / "calibration.json"
    calibrated_speedups.costs_here.cache_clear()


def test_what_was_measured_here_with_a_build_of_the_release_decides(calibration: Path) -> None:
    spec, sizes = default_spec(), {"x 1x16": 0.5}
    calibrated_speedups.store("onnxruntime 1.19.0", spec.provider, 0, {"gelu.from_erf_form": sizes}, calibration)
    of_release, newer, installed = resolve_target(None, runtime="1.19"), resolve_target(None, runtime="1.20"), Target()
    found = [_speedup(one.costs, "gelu.from_erf_form") for one in (of_release, newer, installed)]
    assert found[0] == 0.5
    assert 0.5 not in found[1:]


def _lowered(length: str, *, causal: int = 0, release: str = "1.17", **speedups: float) -> set[str]:
    rows = tuple(
        Measured.parse(f"query 1x{size[1:]}x768, key 1x{size[1:]}x768, value 1x{size[1:]}x768", value)
        for size, value in speedups.items()
    )
    target = Target(table=table_of_release(default_spec(), release), costs=CostTable({LOWERING: rows}, "a test"))
    model = ir.from_proto(onnx.parser.parse_model(ATTENTION.format(length=length, causal=causal)))
    PassManager(Options(passes="lower_operators, dce", target=target)).run(model)
    return set(ops(model).split())


@pytest.mark.parametrize(("length", "fused"), [("64", True), ("1500", False), ("length", False)])
def test_attention_becomes_products_where_the_fused_operator_is_slower(length: str, fused: bool) -> None:
    made = _lowered(length, _64=1.05, _1500=0.8)
    assert ("MultiHeadAttention" in made, "Softmax" in made) == (fused, not fused)


def test_an_open_size_counts_as_the_usual_one_in_tables_of_older_releases() -> None:
    rows = tuple(Measured.parse(f"x 1x{size}x8", value) for size, value in ((16, 2.0), (128, 1.1), (1500, 0.1)))
    table = CostTable({"a.rule": rows}, "a test")
    for shape, expected in (((1, "length", 8), 1.1), ((1, 1000, 8), 0.1), ((None, None, None), 1.1)):
        found = replace(table, releases=("1.17", "1.17")).estimate("a.rule", {"x": shape}.get)
        assert found is not None and found.speedup == pytest.approx(expected)
    newest = table.estimate("a.rule", {"x": (1, "length", 8)}.get)
    assert newest is not None and newest.speedup == pytest.approx((2.0 * 1.1 * 0.1) ** (1 / 3))


@pytest.mark.parametrize("name", ["bert.sdpa.ts", "llama_cache.sdpa.ts", "gpt2_cache.sdpa.ts", "t5_decoder.sdpa.ts"])
def test_attention_of_an_open_length_stays_one_operator_on_the_oldest_release(name: str) -> None:
    costs = next(table for table in shipped_tables(default_spec()) if table.counts_for((1, 17)))  # whatever runs here
    target = Target(table=table_of_release(default_spec(), "1.17"), costs=costs)
    result = ortfuse.optimize(GOLDEN / f"{name}.onnx", target=target).model
    assert not {"Softmax", "Attention"} & set(ops(result).split())


def test_causal_attention_has_no_other_form_whatever_it_costs() -> None:
    assert "MultiHeadAttention" in _lowered("1500", causal=1, _1500=0.5)


def test_costs_of_the_kernel_of_attention_do_not_decide_what_it_is_lowered_to() -> None:
    rule = "attention.unmasked_attention_op_to_multi_head_attention"
    costs = CostTable(
        {
            rule: (Measured.parse("query 1x64x768, key 1x64x768, value 1x64x768", 2.0),),
            LOWERING: (Measured.parse("query 1x64x768, key 1x64x768, value 1x64x768", 0.5),),
        }
    )
    target = Target(table=table_of_release(default_spec(), "1.17"), costs=costs)
    found = ortfuse.optimize(onnx.parser.parse_model(ATTENTION.format(length=64, causal=0)), target=target)
    assert "MultiHeadAttention" not in {node.op_type for node in found.model.graph.node}


def test_several_releases_take_what_none_of_them_is_slower_with() -> None:
    tables = [CostTable({"a.fusion": (Measured.parse("x 1x16", value),)}, f"release {value}") for value in (2.0, 0.5)]
    members = [
        Target(table=table_of_release(default_spec(), release), costs=costs)
        for release, costs in zip(("1.20", "1.17"), tables, strict=True)
    ]
    assert _speedup(JointTarget(members).costs, "a.fusion") == 0.5


@pytest.mark.parametrize("releases", ["1.17,1.24", "1.24,1.17", "1.17,1.20,1.32"])
def test_a_loss_that_was_measured_on_one_of_several_releases_counts(releases: str, calibration: Path) -> None:
    joint = resolve_target(None, runtime=releases)
    members = [resolve_target(None, runtime=one) for one in releases.split(",")]
    rows = [
        (rule, row)
        for table in shipped_tables(default_spec())
        for rule in table.speedups
        for row in table.speedups[rule]
    ]
    for rule, row in rows:
        alone = [one.costs.estimate(rule, row.shapes.get, row.dtype) for one in members]
        found = joint.costs.estimate(rule, row.shapes.get, row.dtype)
        assert found == min((one for one in alone if one is not None), key=lambda one: one.speedup, default=None)
    model = onnx.parser.parse_model(ATTENTION.format(length=512, causal=0))
    made = ortfuse.optimize(model, runtime=releases).model
    assert "MultiHeadAttention" not in {node.op_type for node in made.graph.node}


@pytest.mark.parametrize(("release", "fused"), [("1.17", False), ("1.18", True), ("1.19", True), ("1.20", True)])
def test_long_attention_becomes_products_on_the_release_where_it_is_slower(
    release: str, fused: bool, calibration: Path
) -> None:
    model = onnx.parser.parse_model(ATTENTION.format(length=512, causal=0))
    made = ortfuse.optimize(model, runtime=release).model
    assert ("MultiHeadAttention" in {node.op_type for node in made.graph.node}) == fused
