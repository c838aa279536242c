"""What ortfuse writes, onnx.checker accepts, whatever opset it may be raised to."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.checker
import onnx.parser
import pytest

import ortfuse

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
NAMES = (
    "bert.eager.ts",
    "llama.sdpa.ts",
    "t5_encoder.eager.dynamo",
    "swin.eager.dynamo",
    "wav2vec2.sdpa.dynamo",
    "resnet.tsbn",
)
WEIGHTS = "float e = {0.00001}, float two = {2.0}, float[8] w = {1,2,3,4,5,6,7,8}, float[8] c = {1,2,3,4,5,6,7,8}"
HALF = "float h = {0.5}, float o = {1.0}, float r = {1.4142135}"

BODIES = {
    "layer norm": f"""<{WEIGHTS}> {{ m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean<axes=[-1]>(p)
        a = Add(v, e) s = Sqrt(a) q = Div(d, s) z = Mul(q, w) y = Add(z, c) }}""",
    "rms norm": f"""<{WEIGHTS}> {{ p = Pow(x, two) v = ReduceMean<axes=[-1]>(p) a = Add(v, e) s = Sqrt(a) q = Div(x, s)
        y = Mul(q, w) }}""",
    "gelu": f"<{HALF}> {{ d = Div(x, r) u = Erf(d) f = Add(u, o) m = Mul(x, f) y = Mul(m, h) }}",
    "swish": "{ s = Sigmoid(x) y = Mul(x, s) }",
}


def _is_accepted(path: Path | onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


@pytest.mark.parametrize("limit", [None, 9, 13, 16, 17, 18, 20, 22, 23])
@pytest.mark.parametrize("opset", [9, 13, 17])
@pytest.mark.parametrize("body", BODIES)
def test_a_small_model_stays_valid(body: str, opset: int, limit: int | None) -> None:
    head = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[b, s, 8] x) => (float[b, s, 8] y)'
    proto = onnx.parser.parse_model(f"{head} {BODIES[body]}")
    assert _is_accepted(proto)
    assert _is_accepted(ortfuse.optimize(proto, max_opset=max(limit, opset) if limit else None, loaded=False).model)


@pytest.mark.parametrize("limit", [None, 18, 20])
@pytest.mark.parametrize("name", NAMES)
def test_a_golden_model_stays_valid(name: str, limit: int | None, tmp_path: Path) -> None:
    path = GOLDEN / f"{name}.onnx"
    ortfuse.optimize(path, max_opset=limit, output=tmp_path / "result.onnx", loaded=False)
    assert _is_accepted(tmp_path / "result.onnx") or not _is_accepted(path)
