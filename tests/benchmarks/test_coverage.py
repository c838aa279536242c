"""What the coverage benchmark counts, and what it makes of results that are broken and of tools that crash."""

import os
import time
from pathlib import Path

import onnx
import pytest

from benchmarks.coverage.measure import GOLDEN, merged
from benchmarks.coverage.report import markdown, totals
from benchmarks.coverage.sites import FAMILIES, expected, fused
from benchmarks.isolated import call


def saved(text: str, path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(text), path)
    return path


HEAD = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1, "local": 1]>'


def test_the_golden_models_are_where_they_are_looked_for():
    assert any(GOLDEN.glob("*.onnx"))


def test_operators_in_functions_count_once_for_each_call(tmp_path):
    text = f"""{HEAD}
    agraph (float[2, 8] x) => (float[2, 8] y) {{
       a = local.Twice (x)
       y = local.Twice (a)
    }}
    <domain: "local", opset_import: ["": 23]>
    Twice (x) => (z) {{
       y = Gelu (x)
       z = Gelu (y)
    }}
    """
    found, nodes = fused(saved(text, tmp_path / "m.onnx"))
    assert found["gelu"] == 4 and nodes == 4


def test_operators_in_branches_count(tmp_path):
    text = f"""{HEAD}
    agraph (bool c, float[2, 8] x) => (float[2, 8] y) {{
       y = If (c) <then_branch = g1 () => (float[2, 8] a) {{ a = Gelu (x) }},
                   else_branch = g2 () => (float[2, 8] b) {{ b = Identity (x) }}>
    }}
    """
    assert fused(saved(text, tmp_path / "m.onnx"))[0]["gelu"] == 1


def test_a_function_of_the_name_of_an_operator_is_no_fused_operator(tmp_path):
    text = f"""{HEAD}
    agraph (float[2, 8] x) => (float[2, 8] y) {{
       y = com.microsoft.BiasGelu (x, x)
    }}
    <domain: "com.microsoft", opset_import: ["": 23]>
    BiasGelu (x, b) => (z) {{
       y = Add (x, b)
       z = Sin (y)
    }}
    """
    assert fused(saved(text, tmp_path / "m.onnx"))[0]["gelu"] == 0


def test_an_attention_that_turns_queries_and_keys_itself_counts_as_two_rotary_embeddings(tmp_path):
    text = f"""{HEAD}
    agraph (float[1, 4, 16] q, float[1, 4, 8] k, int32[1, 1] s, int32[1] n, float[9, 4] c) => (float[1, 4, 16] y) {{
       y, p, v = com.microsoft.GroupQueryAttention
           <num_heads = 2, kv_num_heads = 1, do_rotary = 1> (q, k, k, , , s, n, c, c)
    }}
    """
    found, _ = fused(saved(text, tmp_path / "m.onnx"))
    assert (found["attention"], found["rotary"]) == (1, 2)


def test_quick_gelu_and_silu_calls_are_one_family():
    sites = {
        "attention": 1,
        "rotary_tensors": 4,
        "activations": {"silu": 2, "quick_gelu": 1, "gelu_tanh": 5, "relu": 9},
    }
    found = expected(sites)
    assert (found["swish"], found["gelu"], found["rotary"], found["layer_norm"]) == (3, 5, 4, 0)


def entry(status: str, attentions: int, sites: int) -> dict:
    none = dict.fromkeys(FAMILIES, 0)
    tool = {"status": status, "fused": none | {"attention": attentions}, "reason": "differs"}
    original = {"status": "ok", "fused": none}
    return {
        "model": "m",
        "exporter": "ts",
        "sites": none | {"attention": sites},
        "tools": {"original": original, "ortfuse": tool},
    }


@pytest.mark.parametrize(
    ("status", "attentions", "counted"), [("ok", 2, 2), ("ok", 5, 3), ("broken", 3, 0), ("failed", 0, 0)]
)
def test_only_results_that_work_count_and_no_more_sites_than_there_are(status, attentions, counted):
    found = totals([entry(status, attentions, 3)])["ts"]["tools"]["ortfuse"]
    assert found["attention"] == counted
    assert found["broken"] == (status == "broken") and found["failed"] == (status == "failed")


def test_the_report_names_broken_results_and_what_was_missed():
    broken, missed = entry("broken", 0, 3), entry("ok", 1, 3)
    missed |= {"missing": {"attention": 2}, "misses": {"attention": []}}
    files = [broken, missed]
    run = {"machine": "y", "versions": {}, "result": {"transformers_kinds": [], "totals": totals(files)}}
    text = markdown("x", run, files)
    assert "| ortfuse | m | broken | differs |" in text
    assert "| m | attention | 2 |  | no rule came near |" in text


def test_measuring_one_tool_again_keeps_the_others_results_and_the_misses():
    before = entry("ok", 1, 3) | {"missing": {"attention": 2}, "misses": {}}
    after = entry("ok", 3, 3)
    again = merged(before, {**after, "tools": {"original": {}, "onnxsim": {"status": "failed"}}})
    assert list(again["tools"]) == ["original", "ortfuse", "onnxsim"] and again["missing"] == {"attention": 2}
    assert "missing" not in merged(before, after)


def crash() -> None:
    os.abort()


def raise_error() -> None:
    raise RuntimeError("two\nlines")


@pytest.mark.parametrize(
    ("function", "arguments", "error"),
    [
        (os.path.basename, ("a/b",), None),
        (raise_error, (), "RuntimeError: two lines"),
        (crash, (), "crashed: SIGABRT"),
        (time.sleep, (60,), "not done after 1 s"),
    ],
)
def test_a_call_that_fails_crashes_or_hangs_is_an_outcome(function, arguments, error):
    outcome = call(function, *arguments, limit=1 if function is time.sleep else 60)
    assert outcome.error == error
    assert outcome.value == ("b" if error is None else None)
