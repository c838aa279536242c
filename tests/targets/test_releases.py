"""Kernel tables of releases: what a model may use that is compiled for a runtime which is not installed."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.errors import OptionError, TargetError
from ortfuse.targets import default_spec, resolve_target
from ortfuse.targets.kernel_table import KernelTable
from ortfuse.targets.release_kernel_tables import Releases, releases_of, table_of_release, write_releases

MODEL = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[2, 3, 8] x, int64[2, 3] at, float[9, 2] cos, float[9, 2] sin) => (float[2, 3, 8] y) {
        y = com.microsoft.RotaryEmbedding<num_heads: int = 2, is_packed_batching: int = 0>(x, at, cos, sin)
    }"""


@pytest.fixture(scope="module")
def stored() -> Releases:
    found = releases_of(default_spec())
    assert found is not None
    return found


def test_there_is_a_table_of_every_release(stored: Releases) -> None:
    newest = int(stored.names[-1].split(".")[1])
    assert stored.names == [f"1.{minor}" for minor in range(17, newest + 1)]


def test_newer_releases_load_no_lower_opset(stored: Releases) -> None:
    opsets = [stored.table(name).max_opset for name in stored.names]
    assert opsets == sorted(opsets)
    assert opsets[0] == 20


def test_the_table_of_the_installed_release_is_what_the_runtime_says(stored: Releases) -> None:
    release = ".".join(onnxruntime.__version__.split(".")[:2])
    if release not in stored.names:
        pytest.skip("there is no table of the installed release")
    table, asked = stored.table(release), resolve_target(None).table
    assert table.max_opset == asked.max_opset
    assert table.operators.keys() == asked.operators.keys()


def test_a_result_for_an_old_release_has_no_newer_opset() -> None:
    original = ir.from_proto(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 4, s, 8] q, float[2, 4, t, 8] k, float[2, 4, t, 8] v) => (float[2, 4, s, 8] y) {
            kt = Transpose<perm = [0, 1, 3, 2]>(k) qk = MatMul(q, kt) w = Softmax<axis = -1>(qk) y = MatMul(w, v)
        }""")
    )
    new, old = (ortfuse.optimize(original.clone(), runtime=release).model for release in (None, "1.20"))
    assert new.opset_imports[""] == 23
    assert old.opset_imports[""] <= 21


@pytest.mark.parametrize(("release", "known"), [("1.18", False), ("1.19.2", True)])
def test_an_attribute_counts_from_the_release_on_that_has_it(release: str, known: bool) -> None:
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    target = resolve_target(None, runtime=release)
    refusal = target.check_node(model.graph[0], model.opset_imports, Facts(model))
    assert (refusal is None) == known
    if refusal is not None:
        assert "has no attribute is_packed_batching in onnxruntime 1.18" in str(refusal)


def test_tables_are_read_as_they_were_written(tmp_path: Path, stored: Releases) -> None:
    one = stored.table("1.20")
    one.write(tmp_path / "table.json")
    assert KernelTable.of_file(tmp_path / "table.json") == one
    write_releases(tmp_path / "releases.json.gz", {"1.20": one, "1.17": stored.table("1.17")})
    assert (tmp_path / "releases.json.gz").stat().st_size > 0


@pytest.mark.parametrize("release", ["1.16", "2.0"])
def test_a_release_without_a_table_is_told_with_those_that_have_one(release: str) -> None:
    with pytest.raises(TargetError, match=r"known are 1\.17 to 1\."):
        table_of_release(default_spec(), release)


def test_a_release_is_named_by_its_number() -> None:
    with pytest.raises(OptionError, match=r"such as 1\.20"):
        ortfuse.optimize(onnx.parser.parse_model(MODEL), runtime="newest")


def test_a_kernel_table_is_of_one_release_already(tmp_path: Path) -> None:
    resolve_target(None).to_table(tmp_path / "table.json")
    with pytest.raises(TargetError, match="name one of the two"):
        resolve_target(tmp_path / "table.json", runtime="1.20")
