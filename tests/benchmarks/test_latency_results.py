"""How the latency benchmark keeps its results, so that a run can go on and a part be measured again."""

import pytest
import typer

from benchmarks.by_processor import rows_of, store
from benchmarks.latency.measure import chosen, means, merged, peer


def row(**speedups: float | str) -> dict:
    tools = {
        tool: {"status": "ok", "speedup": value} if isinstance(value, float) else {"status": value}
        for tool, value in speedups.items()
    }
    return {"tools": tools}


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


def test_what_was_stored_is_found_again_and_other_processors_stay(tmp_path):
    rows, others = {"b": row(ortfuse=1.0), "a": row(onnxslim="failed")}, {"a": row(ortfuse=2.0)}
    output = tmp_path / "r.json"
    store(output, "command", "x86_64", {"means": means(rows), "models": rows})
    store(output, "command", "arm64", {"models": others})
    assert rows_of(output, "x86_64") == rows and rows_of(output, "arm64") == others
    assert rows_of(output, "riscv64") == {} == rows_of(tmp_path / "none.json", "x86_64")


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
