from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ortfuse.errors import TargetError
from ortfuse.ir.dims import symbol
from ortfuse.targets import CostTable, Target, default_spec, processor, shipped_costs, shipped_tables
from ortfuse.targets.rule_speedups import Measured, sizes_text

TABLE = CostTable(
    {
        "a.rule": (
            Measured.parse("x 1x16x384", 0.5),
            Measured.parse("x 1x128x768", 2.0),
            Measured.parse("x 1x128x3072", 8.0),
        ),
        "two.shapes": (Measured.parse("q 1x128x64, k 1x128x64", 1.5), Measured.parse("q 1x1x64, k 1x128x64", 0.5)),
    },
    "somewhere",
)


def _of(**shapes: tuple[Any, ...]) -> Any:
    return shapes.get


@pytest.mark.parametrize(
    ("shape", "speedup"), [((1, 20, 384), 0.5), ((4, 100, 768), 2.0), ((1, 128, 4096), 8.0), ((16, 384), 0.5)]
)
def test_the_nearest_measurement_counts(shape: tuple[int, ...], speedup: float) -> None:
    found = TABLE.estimate("a.rule", _of(x=shape))
    assert found is not None
    assert found.speedup == pytest.approx(speedup)


def test_what_is_not_known_makes_no_difference() -> None:
    length = symbol("length")
    for shapes, speedup in (({"x": (1, length, 768)}, 2.0), ({"x": (1, 128, length)}, 4.0), ({}, 2.0)):
        found = TABLE.estimate("a.rule", _of(**shapes))
        assert found is not None
        assert found.speedup == pytest.approx(speedup)


def test_shapes_of_another_rank_are_compared_from_the_last_dimension_where_sizes_are_open() -> None:
    length = symbol("length")
    for shape, speedup in (((length, 384), 0.5), ((length, 2, 128, 3072), 8.0), ((length,), 0.5)):
        found = TABLE.estimate("a.rule", _of(x=shape))
        assert found is not None
        assert found.speedup == pytest.approx(speedup)


def test_all_values_of_a_measurement_count() -> None:
    found = TABLE.estimate("two.shapes", _of(q=(1, 1, 64), k=(1, 500, 64)))
    assert found is not None
    assert (round(found.speedup, 6), found.sizes, found.worth_it) == (0.5, "q 1x1x64, k 1x128x64", False)


def test_a_rule_that_was_not_measured_has_no_estimate() -> None:
    assert TABLE.estimate("another.rule", _of(x=(1, 2))) is None


def test_sizes_are_read_as_they_are_written() -> None:
    shapes = {"q": (1, 128, 64), "k": (7,)}
    assert Measured.parse(sizes_text(shapes), 1.0).shapes == shapes


@pytest.mark.parametrize(
    "text", ["", "[]", '{"speedups": {"a.b": {"x 1xtwo": 1}}, "source": ""}', '{"speedups": {}}', '{"tables": []}']
)
def test_a_file_that_is_no_table_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(TargetError, match=r"costs\.json is no cost table"):
        CostTable.read(path)


def test_the_shipped_tables_name_values_that_rules_capture() -> None:
    from ortfuse.pipeline import load_catalogue

    rules = {rule.name: rule for rule in load_catalogue([]).rules()}
    for costs in shipped_tables(default_spec()):
        assert costs.speedups or costs.releases is not None
        for name, rows in costs.speedups.items():
            captured = {shape_name for typical in rules[name].test.typical for shape_name in typical}
            assert all(set(row.shapes) <= captured for row in rows), name


def test_of_several_tables_the_one_counts_whose_processor_multiplies_most_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = (("x86_64 AVX512F", "AMX_INT8 AVX512_VNNI"), ("x86_64 AVX512F", "AVX512_VNNI"), ("x86_64 AVX2", "AVX_VNNI"))
    tables = [
        {"speedups": {}, "source": f"{kind}, {formats}", "processor": kind, "formats": formats}
        for kind, formats in kinds
    ]
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"tables": tables}))

    def chosen(kind: str, formats: str) -> str:
        monkeypatch.setattr("ortfuse.targets.rule_speedups.processor_kind", lambda: kind)
        monkeypatch.setattr("ortfuse.targets.rule_speedups.number_formats", lambda: formats)
        return CostTable.read(path).source

    assert chosen("x86_64 AVX512F", "AVX512_BF16 AVX512_VNNI") == "x86_64 AVX512F, AVX512_VNNI"
    assert chosen("x86_64 AVX512F", "AMX_BF16 AMX_INT8 AVX512_VNNI") == "x86_64 AVX512F, AMX_INT8 AVX512_VNNI"
    assert chosen("x86_64 AVX2", "") == "x86_64 AVX2, AVX_VNNI"


def test_a_target_has_the_costs_that_are_shipped_for_its_provider_unless_others_are_given() -> None:
    assert Target().costs == shipped_costs(default_spec())
    assert not Target(costs=CostTable({})).costs.speedups


MIXED = CostTable(
    {
        "mixed.rule": (Measured.parse("x 1x16x384", 0.5), Measured.parse("x 1x128x768", 2.0)),
        "good.rule": (Measured.parse("x 1x16x384", 3.0), Measured.parse("x 1x128x768", 1.2)),
    },
    "somewhere",
    "x86_64 AVX512F",
)


def test_a_table_of_another_architecture_counts_only_at_its_worst() -> None:
    here, near, far = (MIXED.used_on(kind) for kind in ("x86_64 AVX512F", "x86_64 AVX2", "aarch64 ASIMD"))
    for rule, best, worst in (("mixed.rule", 2.0, 0.5), ("good.rule", 1.2, 1.2)):
        estimates = [table.estimate(rule, _of(x=(1, 128, 768))) for table in (here, near, far)]
        assert [round(found.speedup, 3) for found in estimates if found is not None] == [best, best, worst]
    assert "the worst size" in str(far.estimate("good.rule", _of()))
    assert "x86_64 AVX512F" in near.remark
    assert "x86_64 AVX2" in near.remark
    assert "left out" not in near.remark
    assert "left out" in far.remark
    assert here.remark == ""


def test_rows_of_other_types_are_bound_to_the_instructions_for_them() -> None:
    rows = ("x 1x16x384", "x 1x128x768", "float16: x 1x16x384", "float16: x 1x128x768")
    measured = tuple(Measured.parse(row, value) for row, value in zip(rows, (0.5, 2.0, 0.4, 3.0), strict=True))
    table = CostTable({"rule": measured}, "there", "x86_64 AVX512F", formats="AMX_BF16 AMX_INT8 AVX512_VNNI")
    same = table.used_on("x86_64 AVX512F", "AMX_BF16 AMX_INT8 AVX512_VNNI")
    without = table.used_on("x86_64 AVX512F", "AVX512_VNNI")
    found = {
        (name, dtype): one.estimate("rule", _of(x=(1, 128, 768)), dtype)
        for name, one in (("same", same), ("without", without))
        for dtype in ("float32", "float16")
    }
    speedups = {key: round(one.speedup, 3) for key, one in found.items() if one is not None}
    assert speedups == {
        ("same", "float32"): 2.0, ("same", "float16"): 3.0, ("without", "float32"): 2.0, ("without", "float16"): 0.4,
    }  # fmt: skip
    sources = {one.source for key, one in found.items() if one is not None and key[0] == "without"}
    assert "AMX_BF16" in without.remarks(sources)[0]
    assert not without.remarks({"there"})
    assert not same.remarks({"there"})


@pytest.mark.parametrize(
    ("flags", "numpy", "found"),
    [
        ("fpu avx2 avx512f avx512_vnni amx_int8 amx_bf16", {}, "AMX_BF16 AMX_INT8 AVX512_VNNI"),
        ("fpu avx2 avx512f avx512_vnni", {}, "AVX512_VNNI"),
        ("fpu avx2 avx_vnni", {}, "AVX_VNNI"),
        ("fpu avx2", {"AVX512_CLX": True}, ""),
        ("", {"AVX512_CLX": True, "ASIMDDP": False}, "AVX512_VNNI"),
    ],
)
def test_processors_are_told_apart_by_what_they_multiply(
    flags: str, numpy: dict[str, bool], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "_told", lambda what: flags if what == "flags" else "")
    monkeypatch.setattr(processor, "_instruction_sets", lambda: numpy)
    assert processor.number_formats.__wrapped__() == found


def test_a_table_that_names_no_processor_is_believed() -> None:
    assert TABLE.used_on("aarch64 ASIMD").elsewhere == ""


def test_the_shipped_table_is_bound_to_a_processor_and_used_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shipped_costs(default_spec()).processor
    monkeypatch.setattr("ortfuse.targets.rule_speedups.processor_kind", lambda: "riscv64 RVV")
    assert shipped_costs.__wrapped__(default_spec()).elsewhere == "riscv64 RVV"


@pytest.mark.parametrize(
    ("machine", "features", "kind"),
    [
        ("AMD64", {"AVX": True, "AVX2": True, "AVX512F": False}, "x86_64 AVX2"),
        ("x86_64", {"AVX2": True, "AVX512F": True}, "x86_64 AVX512F"),
        ("arm64", {"ASIMD": True}, "aarch64 ASIMD"),
        ("loongarch64", {}, "loongarch64"),
    ],
)
def test_processors_are_told_apart_by_their_instructions(
    machine: str, features: dict[str, bool], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor.platform, "machine", lambda: machine)
    monkeypatch.setattr(processor, "_instruction_sets", lambda: features)
    assert processor.processor_kind.__wrapped__() == kind


def test_numpy_says_what_this_processor_has() -> None:
    assert any(processor._instruction_sets().values())


def test_sizes_that_a_table_lacks_come_from_others_for_its_kind_of_processor(tmp_path: Path) -> None:
    kind = processor.processor_kind()
    own = {"a.b": {"x 64x1000": 1.5}}
    others = {"a.b": {"x 1x16": 0.5, "x 64x1000": 9.0, "float16: x 1x8": 0.1}, "c.d": {"x 1x16": 2.0}}
    foreign = {"a.b": {"x 1x2": 0.1}, "e.f": {"x 1x2": 0.1}}
    tables = [
        {"speedups": own, "source": "here", "processor": kind, "formats": " ".join(processor.number_formats().split())},
        {"speedups": others, "source": "there", "processor": kind, "formats": "SOME_OTHER"},
        {"speedups": foreign, "source": "elsewhere", "processor": "z80"},
    ]
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"tables": tables}))
    table = CostTable.read(path).used_on(kind, processor.number_formats())
    small, large = (table.estimate("a.b", {"x": shape}.get) for shape in ((1, 8), (64, 1000)))
    assert small is not None and large is not None
    assert (small.speedup, small.source) == (0.5, "there")
    assert (large.speedup, large.source) == (1.5, "here")
    assert table.estimate("c.d", {"x": (1, 8)}.get) is not None
    assert table.estimate("e.f", {"x": (1, 8)}.get) is None
