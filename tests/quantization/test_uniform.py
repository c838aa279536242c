"""`ortfuse.lower`: the same schemes everywhere, without a search."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortfuse
from ortfuse.cli.app import main
from ortfuse.errors import NoSiteError, OptionError, PrecisionError
from ortfuse.runtime.session import Session

SIZE = 32
DOCUMENT = Path(__file__).parents[2] / "docs" / "quantize.md"


def proto() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[n, {SIZE}] x) => (float[n, {SIZE}] y) {{ a = MatMul(x, w0)  b = Relu(a)  y = MatMul(b, w1) }}""")
    weights = [(rng.normal(size=(SIZE, SIZE)) / SIZE**0.5).astype(np.float32) for _ in range(2)]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights))
    return model


def given(count: int = 3) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((4, SIZE), np.float32)} for _ in range(count)]


def test_every_site_gets_the_scheme() -> None:
    found = ortfuse.lower(proto(), "dynamic_int8.channel")
    assert list(found.uniform.choice.values()) == ["dynamic_int8.channel"] * 2
    assert found.uniform.size < 0.5 * found.uniform.float_size
    assert ortfuse.verify(proto(), found.model, max_error=0.05).ok


def test_the_first_that_is_legal_counts() -> None:
    found = ortfuse.lower(proto(), ["weight_int4.block128_level4", "weight_int8.block32_level4"])
    assert {*found.uniform.choice.values()} == {"weight_int8.block32_level4"}, "128 rows there are not"


def test_fixed_ranges_need_inputs() -> None:
    with pytest.raises(PrecisionError, match=r"are needed for [a-z0-9_, ]+: give inputs"):
        ortfuse.lower(proto(), "static_int8")
    found = ortfuse.lower(proto(), "static_int8", inputs=given())
    assert len(found.uniform.choice) == 2
    x = given(1)[0]
    expected, other = (
        Session(proto().SerializeToString()).run(x)["y"],
        Session(found.model.SerializeToString()).run(x)["y"],
    )
    assert 0 < np.linalg.norm(other - expected) < 0.1 * np.linalg.norm(expected)


def test_the_reader_of_the_document_hands_out_inputs() -> None:
    names: dict[str, Any] = {"__name__": "quantize"}
    exec(re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0], names)
    assert len(ortfuse.lower(proto(), "static_int8", inputs=names["Reader"]()).uniform.choice) == 2


def test_a_model_without_products_is_refused() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Sin(x) }'
    with pytest.raises(PrecisionError, match="legal nowhere"):
        ortfuse.lower(onnx.parser.parse_model(text), "dynamic_int8")
    with pytest.raises(
        NoSiteError, match=r"^dynamic_int8_lstm is legal nowhere in the model: .*no scheme of dynamic_int8_lstm is for"
    ):
        ortfuse.lower(proto(), "dynamic_int8_lstm")
    with pytest.raises(OptionError, match="no scheme is called 'int3'; there are static_int8_conv, dynamic_int8, "):
        ortfuse.lower(proto(), "int3")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--scheme", "dynamic_int8"], 0),
        (["--scheme", "x"], 2),
        ([], 2),
        (["--scheme", "dynamic_int8", "--budget", "9"], 2),
    ],
)
def test_the_command_needs_no_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    model, result, report = tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "q.json"
    onnx.save(proto(), model)
    with pytest.raises(SystemExit) as stopped:
        main(["quantize", str(model), "-o", str(result), "--json", str(report), *arguments])
    shown = capsys.readouterr()
    assert (stopped.value.code or 0) == code
    assert result.exists() == (code == 0)
    if code:
        assert len(shown.err.strip().splitlines()) == 1
        return
    assert "2 sites lowered" in shown.out
    assert "--max-error" in shown.out
    assert len(json.loads(report.read_text())["choice"]) == 2


SIDE, COUNT = 1024, 12
WEIGHT = 4 * SIDE**2

SCRIPT = """
import re, sys
from pathlib import Path
import ortfuse

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

small, source, target = sys.argv[1:]
ortfuse.lower(small, "dynamic_int8.channel", output=target, loaded=False)
Path("/proc/self/clear_refs").write_text("5")
before = peak()
ortfuse.lower(source, "dynamic_int8.channel", output=target, loaded=False)
print(peak() - before)
"""


def chain(path: Path, count: int) -> Path:
    """A chain of products, whose weights are holes in a file but for one row each."""
    nodes, weights = [], []
    with path.with_suffix(".data").open("wb") as file:
        for number in range(count):
            tensor = onnx.TensorProto(name=f"w{number}", data_type=1, dims=[SIDE, SIDE], data_location=1)
            place = {"location": path.with_suffix(".data").name, "offset": number * WEIGHT, "length": WEIGHT}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            file.seek(number * WEIGHT)
            file.write(np.full(SIDE, number + 1, np.float32).tobytes())
            weights.append(tensor)
            nodes.append(onnx.helper.make_node("MatMul", [f"v{number}", f"w{number}"], [f"p{number}"]))
            nodes.append(onnx.helper.make_node("Tanh", [f"p{number}"], [f"v{number + 1}"]))
        file.truncate(count * WEIGHT)
    ends = [onnx.helper.make_tensor_value_info(f"v{number}", 1, ["n", SIDE]) for number in (0, count)]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of the memory cannot be asked for here"
)
def test_weights_are_lowered_one_after_the_other(tmp_path: Path) -> None:
    small, large = chain(tmp_path / "small.onnx", 2), chain(tmp_path / "large.onnx", COUNT)
    command = [sys.executable, "-c", SCRIPT, small, large, tmp_path / "q.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert int(done.stdout) < 6 * WEIGHT, f"all weights take {COUNT} times as much"
    assert sum(file.stat().st_size for file in tmp_path.glob("q.onnx*")) < 1.1 * COUNT * WEIGHT / 4


def test_a_convolution_with_one_filter_stays() -> None:
    """As which the mean of the rows of a batch is computed: rounding what comes in would take longer."""
    weight = ", ".join(str(number % 7 - 3) for number in range(768 * 8))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 20]> g (float[n,197,768] x) => (float[n,8] y)
        <float[768,8] w = {{{weight}}}, int64[1] a = {{1}}>
        {{ r = Relu(x) s = ReduceMean<keepdims = 0>(r, a) y = MatMul(s, w) }}""")
    made = ortfuse.lower(model, "dynamic_int8").model
    operators = [node.op_type for node in made.graph.node]
    assert operators.count("DynamicQuantizeLinear") == operators.count("Conv") == 1
