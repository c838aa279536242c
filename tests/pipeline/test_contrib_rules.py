"""Rules that are applied by name only: no pipeline has them unasked, and each way of asking runs them."""

from __future__ import annotations

import pytest

import ortfuse
from ortfuse.errors import PipelineError
from ortfuse.pipeline import load_catalogue
from ortfuse.pipeline.pass_lists import built_in_lists
from ortfuse.pipeline.rule_catalogue import CONTRIB
from tests.helpers.graphs import parsed

PASS = "contrib.unbroadcast_mask"
WIDE = """<ir_version: 10, opset_import: ["" : 23]>
g (float[2,6,8] q, float[2,6,8] k, float[2,6,8] v, float[1,1,6,6] m) => (float[2,6,8] y) <int64[4] sizes = {2, 1, 6, 6}> {
    w = Expand (m, sizes)
    y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v, w)
}"""


def operators(**options: object) -> list[str]:
    model = ortfuse.optimize(parsed(WIDE), **options).model  # type: ignore[arg-type]
    return sorted(node.op_type for node in model.graph)


def test_each_file_of_the_folder_is_a_pass_of_its_own() -> None:
    passes = [file.pass_name for file in load_catalogue().files if f"patterns/{CONTRIB}/" in file.origin]
    assert passes and all(name.startswith(f"{CONTRIB}.") for name in passes)
    assert len(passes) == len(set(passes))


def test_no_pipeline_runs_them_unasked() -> None:
    contrib = {name for name in load_catalogue().entries() if name.startswith(CONTRIB)}
    assert PASS in contrib
    for name in built_in_lists():
        assert not any(one in ortfuse.PassManager(name).pipeline_for(parsed(WIDE)) for one in contrib)
    assert "Expand" in operators()


@pytest.mark.parametrize("options", [
    {"patterns": PASS}, {"patterns": [CONTRIB]}, {"passes": f"all, {PASS}"}, {"force": {"attention.unbroadcast_mask": "Attention"}},
])  # fmt: skip
def test_they_run_where_they_are_named(options: dict[str, object]) -> None:
    assert operators(**options) == ["Attention"]


def test_a_pipeline_without_a_place_for_them_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"does not run contrib\.unbroadcast_mask: add `user`"):
        ortfuse.PassManager(ortfuse.Options(passes="canonicalize", patterns=PASS))
