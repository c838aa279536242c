"""What `ortfuse.inspect` tells, against models whose counts are known."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.errors import VerificationError
from ortfuse.runtime.bench import machine_peaks as peaks_module
from ortfuse.runtime.bench.machine_peaks import Peaks, peaks

GOLDEN = Path(__file__).parents[2] / "golden" / "models"


def model(text: str, domains: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 20{domains}]> {text}')


def test_opsets_signature_and_weights() -> None:
    found = ortfuse.inspect(
        model("""g (float[N, 4] x, int64[1] k) => (float[N, 2] y, int64[M] z) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float16[2] h = {1, 2}>
            { c = Cast <to = 1> (h)  m = MatMul(x, w)  a = Add(m, c)  y = Gelu(a)  z = ConstantOfShape <value = int64[1]{0}> (k) }"""),
        measure=False,
    )  # fmt: skip
    (imported,) = found.imports
    assert (imported.domain, imported.version, imported.needed, imported.because) == ("ai.onnx", 20, 20, "Gelu")
    assert [(port.name, port.dtype, port.shape, port.dynamic) for port in found.inputs] == [
        ("x", "float32", ("N", 4), ("N",)),
        ("k", "int64", (1,), ()),
    ]
    assert [(port.name, port.shape) for port in found.outputs] == [("y", ("N", 2)), ("z", ("?",))]
    assert [(row.dtype, row.tensors, row.elements, row.bytes) for row in found.weights] == [
        ("float32", 1, 8, 32),
        ("int64", 1, 1, 8),
        ("float16", 1, 2, 4),
    ]
    assert found.parameters == 10
    assert found.operators == {"Cast": 1, "MatMul": 1, "Add": 1, "Gelu": 1, "ConstantOfShape": 1}


def test_a_type_that_is_not_known_is_no_lack_of_a_kernel() -> None:
    """The output is a sequence of maps, for which there are kernels."""
    found = ortfuse.inspect(
        model(
            """g (float[n, 2] x) => (float[n, 2] y) {
                m = ai.onnx.ml.ZipMap<classlabels_int64s = [0, 1]>(x)  y = Relu(x) }""",
            ', "ai.onnx.ml": 1',
        ),
        measure=False,
    )
    assert not found.detours


def test_operators_without_kernels_and_what_happens_instead() -> None:
    found = ortfuse.inspect(
        model("""g (float[2] x, float16[2] h) => (float[2] y, float16[2] k, float[2] z)
            { y = my.domain.Odd(x)  k = Sin(h)  z = HardSwish(x) }""", ', "my.domain": 1'),
        measure=False,
    )  # fmt: skip
    told = {detour.operator: (detour.nodes, detour.fallback) for detour in found.detours}
    assert told["my.domain.Odd"] == (("y",), "")
    assert told["Sin"] == (("k",), "it is executed in float32, between Casts")
    assert (
        told.get("HardSwish", (("z",), "it is inlined as its definition says"))[1]
        == "it is inlined as its definition says"
    )
    assert found.total.unknown == 1
    assert "the cost of 1 nodes is not known, and left out: my.domain.Odd" in found.notes


def test_costs_at_given_sizes_and_what_binds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Peaks(flops=1e9, bandwidth=1e9, processor="test", threads=0)
    monkeypatch.setattr(peaks_module, "peaks", lambda threads: machine)
    found = ortfuse.inspect(GOLDEN / "bert.sdpa.ts.onnx", sizes={"sequence": 16, "batch": 2})
    # Two layers of width 32: four projections, two matrices of 32 x 64, scores and weighted values; then the pooler.
    tokens = 2 * 16
    assert found.macs == "128*batch*sequence*sequence + 16384*batch*sequence + 1024*batch"
    assert found.total.macs == 2 * (tokens * (4 * 32 * 32 + 2 * 32 * 64) + 2 * 2 * 16 * 16 * 32) + 2 * 32 * 32
    assert [(region.name, region.count) for region in found.regions] == [("transformer", 2), ("everything else", 1)]
    assert (
        sum(region.flops for region in found.regions)
        == found.total.flops
        == sum(row.flops for row in found.by_operator)
    )
    assert [block.macs * 2 for block in found.blocks] == [found.regions[0].macs] * 2
    assert all(block.nodes for block in found.blocks)
    rows = {row.name: row for row in found.by_operator}
    assert rows["MatMul"].bound == "compute" and rows["LayerNormalization"].bound == "memory"
    one = rows["LayerNormalization"]
    assert one.seconds == pytest.approx(one.bytes / 1e9)
    with pytest.raises(VerificationError, match="no open dimension of that name"):
        ortfuse.inspect(GOLDEN / "bert.sdpa.ts.onnx", sizes={"length": 3}, measure=False)


def test_dimensions_without_a_name_are_called_by_their_place() -> None:
    given = model("g (float[N, 4] x, float[4, 2] w) => (float[N, 2] y) { y = MatMul(x, w) }")
    given.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    found = ortfuse.inspect(given, measure=False, sizes={"x[0]": 3})
    assert (found.macs, found.total.macs, found.sizes) == ("8*x[0]", 24, {"x[0]": 3})


def test_bodies_are_counted_once_and_that_is_said() -> None:
    found = ortfuse.inspect(
        model("""g (float[3] h, float[L, 3] x) => (float[3] z, float[L, 3] y)
            { z, y = Scan <num_scan_inputs = 1, body = step (float[3] s, float[3] xi) => (float[3] so, float[3] yo)
              { so = Max(s, xi)  yo = Tanh(so) }> (h, x) }"""),
        measure=False,
    )  # fmt: skip
    assert found.total.flops == 6
    assert "bodies of loops and branches are counted once, however often they run" in found.notes


def test_linear_states_are_counted_and_what_comes_after_them_too() -> None:
    found = ortfuse.inspect(
        model("""g (float[3] h, float[L, 3] x) => (float[3] z, float[L, 3] y)
            { z, y = Scan <num_scan_inputs = 1, body = step (float[3] s, float[3] xi) => (float[3] so, float[3] yo)
              { so = Add(s, xi)  yo = Tanh(so) }> (h, x) }"""),
        measure=False, sizes={"L": 5},
    )  # fmt: skip
    assert found.total.unknown == 0
    assert found.total.macs > 0


def test_peaks_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks_module, "SIDE", 8)
    monkeypatch.setattr(peaks_module, "COPIED", 1 << 12)
    monkeypatch.setattr(peaks_module, "SECONDS", 0.001)
    cache = tmp_path / "cache" / "peaks.json"
    first = peaks(1, cache)
    assert first.flops > 0 and first.bandwidth > 0 and first.processor
    monkeypatch.setattr(peaks_module, "_flops", lambda threads: 7.0)
    assert peaks(1, cache) == first
    assert peaks(2, cache).flops == 7.0
    cache.write_text("{")
    assert peaks(1, cache).flops == 7.0


def test_the_command_prints_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.json"
    ran = CliRunner().invoke(
        app, ["inspect", str(GOLDEN / "resnet.ts.onnx"), "--no-measure", "--size", "batch=2", "--json", str(report)]
    )
    assert ran.exit_code == 0, ran.output
    for words in (
        "ai.onnx 17",
        "3 bottleneck",
        "multiply-accumulates: 317344*batch",
        "Cost at batch=2",
        "parameters: 1,922",
    ):
        assert words in ran.output
    content = json.loads(report.read_text())
    assert content["total"]["macs"] == 2 * 317344
    assert content["kinds"] == {"bottleneck": 3}
    assert content["peaks"] is None
    monkeypatch.setattr(peaks_module, "peaks", lambda threads: Peaks(1e9, 1e8, "test", 0))
    ran = CliRunner().invoke(app, ["inspect", str(GOLDEN / "resnet.ts.onnx")])
    assert "10.0 FLOP for each byte" in ran.output and "compute" in ran.output and "memory" in ran.output
    ran = CliRunner().invoke(app, ["inspect", str(GOLDEN / "resnet.ts.onnx"), "--size", "length=2"])
    assert ran.exit_code == 2
