"""Metadata of a model name no code that is run, and do no harm however they are damaged."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

import ortfuse
from ortfuse.errors import OptionError, OrtfuseError
from ortfuse.io.convert_model_objects import enter
from ortfuse.quantization.error_bound_metadata import KEY as BOUND
from ortfuse.quantization.error_bound_metadata import read_bound
from ortfuse.runtime.int8_kv_caches import KEY as CACHES
from ortfuse.runtime.session_settings.settings_in_model import KEY as SESSION

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x) => (float[n,4] y) { y = Relu(x) }'
DECODER = """<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x, int8[b,h,t,4] p) => (float[n,4] y, int8[b,h,t,4] q)
{ y = Relu(x) q = Identity(p) }"""


def model(text: str = TEXT, **metadata: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(text)
    onnx.helper.set_model_props(made, {name.replace("_", "."): value for name, value in metadata.items()})
    return made


def stating(metric: Any, error: Any = 0.1, outputs: Any = ()) -> onnx.ModelProto:
    return model(ortfuse_bound=json.dumps({"metric": metric, "max_error": error, "outputs": list(outputs)}))


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "planted_metric.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef error(expected, found, inputs): return 0.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "planted_metric:error"
    sys.modules.pop("planted_metric", None)


def test_a_function_that_a_model_names_is_not_imported(planted: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="name it too to have it imported"):
        ortfuse.verify(model(), stating(planted))
    with pytest.raises(OptionError, match="name it too to have it imported"):
        ortfuse.verify(model(), stating(planted), max_error=0.1)
    ortfuse.optimize(stating(planted), verify="whole")
    assert ortfuse.verify(stating(planted), stating(planted)).state == "equal"
    assert not (tmp_path / "ran").exists()


def test_a_function_that_the_user_names_too_is_called(planted: str, tmp_path: Path) -> None:
    verdict = ortfuse.verify(model(), stating(planted), metric=planted)
    assert (verdict.ok, verdict.metric, verdict.bound) == (True, planted, 0.1)
    assert (tmp_path / "ran").exists()
    with pytest.raises(OptionError, match="max_error"):
        ortfuse.verify(model(), stating("l2"), metric=planted)


@pytest.mark.parametrize("error", [0, -1, 1, 1e9, math.inf, math.nan, "1e999", 10**400, None, [], True])
def test_a_bound_that_anything_keeps_is_none(error: Any) -> None:
    assert read_bound(enter(stating("l2", error))[0]) is None


DAMAGE = [
    "", "{", "[]", "null", "1", '"x"', "[" * 100_000, '{"a":' * 5000, "{}", '{"p": 1}', '{"p": {}}', "\ud83d",
    '{"metric": ["l2"], "max_error": 0.1, "outputs": []}', '{"metric": {}, "max_error": 0.1, "outputs": {}}',
    '{"metric": "l2", "max_error": 0.1, "outputs": 1}', '{"metric": "l2", "max_error": 0.1, "outputs": ["none"]}',
    '{"metric": "os:system", "max_error": 0.1, "outputs": []}', '{"metric": ":", "max_error": 0.1, "outputs": []}',
    '{"p": {"present": "q", "scales": [], "heads": 1}}', '{"p": {"present": "q", "scales": [1, 2, 3], "heads": 1}}',
    '{"p": {"present": "q", "scales": [0, 0, 0, 0], "heads": 0}}', '{"p": {"present": "q", "scales": [NaN], "heads": -1}}',
    '{"p": {"present": "q", "scales": [1e999], "heads": 1e999}}', '{"p": {"present": "q", "scales": [' + "9" * 400 + '], "heads": 1}}',
    '{"p": {"present": [], "scales": "1234", "heads": 1}}', '{"p": {"present": "p", "scales": [1], "heads": 1}}',
]  # fmt: skip


damaged = pytest.mark.parametrize(
    ("key", "damage"),
    [pytest.param(key, damage, id=f"{damage[:50]}-{key}") for damage in DAMAGE for key in (BOUND, CACHES, SESSION)],
)


@pytest.mark.filterwarnings("ignore::ortfuse.errors.OrtfuseWarning")
@damaged
def test_damaged_metadata_end_in_an_error_of_ortfuse_at_most(key: str, damage: str, tmp_path: Path) -> None:
    damage = damage.encode(errors="replace").decode()
    made = model(DECODER, **{key.replace(".", "_"): damage})
    plain = model(DECODER)
    onnx.save(made, tmp_path / "m.onnx")
    for action in (
        lambda: ortfuse.optimize(tmp_path / "m.onnx", output=tmp_path / "o.onnx", verify="whole"),
        lambda: ortfuse.verify(plain, made),
        lambda: ortfuse.verify(made, plain),
    ):
        try:
            action()
        except OrtfuseError as error:
            assert len(str(error)) < 1000


# Apart from the others, since who measures ends the process that they need.
@pytest.mark.filterwarnings("ignore::ortfuse.errors.OrtfuseWarning")
@damaged
def test_a_model_with_damaged_metadata_is_measured_or_refused(key: str, damage: str, tmp_path: Path) -> None:
    damage = damage.encode(errors="replace").decode()
    onnx.save(model(DECODER, **{key.replace(".", "_"): damage}), tmp_path / "m.onnx")
    try:
        ortfuse.benchmark({"m": tmp_path / "m.onnx"}, rounds=1)
    except OrtfuseError as error:
        assert len(str(error)) < 1000
