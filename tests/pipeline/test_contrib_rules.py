"""Rules that are applied by name only: no pipeline has them unasked, and each way of asking runs them."""

from __future__ import annotations

import pytest

import ortfuse
from ortfuse.errors import PipelineError
from ortfuse.pipeline import load_catalogue
from ortfuse.pipeline.pass_lists import built_in_lists
from ortfuse.pipeline.rule_catalogue import CONTRIB
from tests.helpers.graphs import parsed

PASS = "contrib.roi_align"
JOINED = """<ir_version: 9, opset_import: ["" : 16]>
g (float[2,3,8,8] x, float[4,4] a, float[5,4] b, int64[4] i, int64[5] j) => (float[9,3,1,1] y) {
    p = RoiAlign(x, a, i)
    q = RoiAlign(x, b, j)
    y = Concat <axis = 0> (p, q)
}"""


def operators(**options: object) -> list[str]:
    model = ortfuse.optimize(parsed(JOINED), **options).model  # type: ignore[arg-type]
    return sorted(node.op_type for node in model.graph)


def test_each_file_of_the_folder_is_a_pass_of_its_own() -> None:
    passes = [file.pass_name for file in load_catalogue().files if f"patterns/{CONTRIB}/" in file.origin]
    assert passes and all(name.startswith(f"{CONTRIB}.") for name in passes)
    assert len(passes) == len(set(passes))


def test_no_pipeline_runs_them_unasked() -> None:
    contrib = {name for name in load_catalogue().entries() if name.startswith(CONTRIB)}
    assert PASS in contrib
    for name in built_in_lists():
        assert not any(one in ortfuse.PassManager(name).pipeline_for(parsed(JOINED)) for one in contrib)
    assert operators().count("RoiAlign") == 2


@pytest.mark.parametrize("options", [
    {"patterns": PASS}, {"patterns": [CONTRIB]}, {"passes": f"all, {PASS}"}, {"force": {"roi.concat_of_2_roi_aligns": "RoiAlign"}},
])  # fmt: skip
def test_they_run_where_they_are_named(options: dict[str, object]) -> None:
    assert operators(**options).count("RoiAlign") == 1


def test_a_pipeline_without_a_place_for_them_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"does not run contrib\.roi_align: add `user`"):
        ortfuse.PassManager(ortfuse.Options(passes="canonicalize", patterns=PASS))
