"""What a program does with a result: text, a page, a session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ortfuse
from ortfuse.errors import OptionError, OutputError

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,8] x) => (float[n,8] y)
<float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) }"""
MASKED = """<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x) => (float[2,4] y)
<float[1,4] mask = {0, -100, 0, -100}> { s = Add(x, mask) y = Softmax(s) }"""


@pytest.fixture(scope="module")
def result() -> ortfuse.Result:
    return ortfuse.optimize(onnx.parser.parse_model(TEXT), verify=True)


def test_to_verify_is_to_verify_the_whole() -> None:
    assert ortfuse.Options(verify=True).verify == "whole"
    assert ortfuse.Options(verify=False).verify is None
    assert ortfuse.Options(verify=True) == ortfuse.Options(verify="whole")


def test_results_reports_and_verdicts_are_short_as_repr(result: ortfuse.Result) -> None:
    assert repr(result).startswith("<Result: 5 -> 1 nodes; fused sites: gelu 1; equal on ")
    assert repr(result.report) == "<RunReport: 5 -> 1 nodes; fused sites: gelu 1>"
    assert repr(result.verdict).startswith("<Verdict: equal on ")
    assert all(len(repr(one)) < 200 for one in (result, result.report, result.verdict))


def test_a_summary_says_what_was_done_and_found(result: ortfuse.Result) -> None:
    lines = result.summary().splitlines()
    assert lines[0] == "5 -> 1 nodes; fused sites: gelu 1"
    assert any(line.startswith("verified: equal on ") for line in lines)


def test_a_result_writes_its_page(result: ortfuse.Result, tmp_path: Path) -> None:
    result.page(tmp_path / "x.html", name="a model")
    text = (tmp_path / "x.html").read_text()
    assert "a model, optimised" in text
    assert "gelu" in text
    assert "ortfuse.optimize(model" in text


def test_a_page_needs_the_original(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    found = ortfuse.optimize(path, output=path)
    with pytest.raises(OptionError, match="the original was replaced by the result"):
        found.page(tmp_path / "x.html")


@pytest.mark.parametrize("written", [True, False])
def test_a_session_of_a_result_has_its_settings(written: bool, tmp_path: Path) -> None:
    output = tmp_path / "r.onnx" if written else None
    found = ortfuse.optimize(onnx.parser.parse_model(MASKED), output=output)
    session = ortfuse.session(found, {"intra_op_num_threads": 1})
    options = session.get_session_options()
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    assert options.intra_op_num_threads == 1
    made = session.run(None, {"x": np.zeros((2, 4), np.float32)})[0]
    np.testing.assert_allclose(made[:, 0], 0.5)


def test_a_session_of_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"of a model file or of a result of ortfuse\.optimize, not of a int"):
        ortfuse.session(3)  # type: ignore[arg-type]


def test_a_page_replaces_neither_the_model_nor_the_result(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(TEXT)
    for tensor in model.graph.initializer:  # as bytes, which onnx writes to a file of their own
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    found = ortfuse.optimize(tmp_path / "m.onnx", output=tmp_path / "o.onnx")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for name in ("m.onnx", "m.data", "o.onnx", "o.onnx.session.json"):
        with pytest.raises(OutputError, match="belongs to the model"):
            found.page(tmp_path / name)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_verdict_can_be_asserted(result: ortfuse.Result) -> None:
    assert ortfuse.verify(onnx.parser.parse_model(TEXT), result.model)
    other = onnx.parser.parse_model(TEXT.replace("half = {0.5}", "half = {0.6}"))
    assert not ortfuse.verify(onnx.parser.parse_model(TEXT), other)
