"""How the latency benchmark keeps its results, so that a run can go on and a part be measured again."""

import pytest
import typer

from benchmarks.latency.measure import brief, chosen, means, merged, peer


def row(**speedups: float | str) -> dict:
    return {"tools": {tool: [value] if isinstance(value, float) else value for tool, value in speedups.items()}}


def test_a_row_of_the_summary_has_speedups_with_bounds_and_the_status_of_results_that_are_not_right():
    tools = {
        "ortfuse": {"status": "ok", "speedup": 2.0, "speedup_bounds": (1.5, 2.5), "nodes": 3, "recommended": None},
        "onnxslim": {"status": "broken", "reason": "differs"},
    }
    found = brief({"sizes": "batch=1", "load": 0.5, "default": {"median_ms": 3.0, "nodes": 7}, "tools": tools})
    expected = {"ortfuse": [2.0, 1.5, 2.5], "onnxslim": "broken"}
    assert found == {"sizes": "batch=1", "default_ms": 3.0, "tools": expected}
    assert brief({"error": "cannot be run", "tools": {}}) == {"error": "cannot be run", "tools": {}}


def test_a_broken_result_has_no_part_in_the_mean_of_its_tool():
    found = means({"a": row(ortfuse=2.0, onnxslim="broken"), "b": row(ortfuse=8.0, onnxslim=3.0)})
    assert found["ortfuse"] == {"geometric_mean": pytest.approx(4), "models": 2}
    assert found["onnxslim"] == {"geometric_mean": pytest.approx(3), "models": 1}


def test_the_best_peer_is_picked_for_each_model_and_is_never_ortfuse():
    found = means({"a": row(ortfuse=9.0, onnxslim=1.0, onnxsim=4.0), "b": row(ortfuse=9.0, onnxslim=9.0)})
    assert found["best peer"] == {"geometric_mean": pytest.approx(6), "models": 2}


def test_measuring_one_tool_again_keeps_the_numbers_of_the_others():
    again = merged(row(ortfuse=1.0, onnxslim=2.0), row(ortfuse=3.0))
    assert again == row(ortfuse=3.0, onnxslim=2.0)


def test_models_are_chosen_by_leading_parts_of_their_names_or_else_those_not_measured_yet(tmp_path):
    for name in ("bert.sdpa.ts", "bert.sdpa.dynamo", "gpt2.sdpa.ts", "gpt2_step.sdpa.ts"):
        (tmp_path / f"{name}.onnx").touch()

    def names(wanted, fresh=False):
        return [path.name.removesuffix(".onnx") for path in chosen(tmp_path, wanted, {"gpt2.sdpa.ts": {}}, fresh)]

    assert names(["gpt2"]) == ["gpt2.sdpa.ts"]
    assert names(["bert.sdpa"]) == ["bert.sdpa.dynamo", "bert.sdpa.ts"]
    assert "gpt2.sdpa.ts" not in names([]) and len(names([])) == 3
    assert len(names([], fresh=True)) == 4
    with pytest.raises(typer.BadParameter, match="no model 'vit'"):
        names(["vit"])


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("gpt2_step.sdpa.ts", ("gpt2", 12, 768)),
        ("t5_encoder.sdpa.ts", ("t5", 8, 512)),
        ("swin.sdpa.ts", ("bert", 0, 0)),
    ],
)
def test_the_transformers_optimizer_is_told_what_model_it_gets(model, told):
    assert peer("transformers", model).args == told
