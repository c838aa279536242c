"""Settings are stored with a result, and sessions are opened with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ortfuse
from ortfuse.errors import ModelFileError, OptionError, VerificationError
from ortfuse.io.load_and_save import metadata
from ortfuse.runtime.session_settings import SessionConfig, Setting, config_beside, stored_config, write_beside
from ortfuse.targets.processor import granted_processors

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x) => (float[2,4] y)
<float[1,4] mask = {0, -100, 0, -100}> { s = Add(x, mask) y = Softmax(s) }"""
PLAIN = '<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }'
KEY = "session.set_denormal_as_zero"


@pytest.fixture(autouse=True)
def _the_first_session_of_the_process_is_a_plain_one() -> None:
    """It decides for the thread of the tests, which is not to take subnormal numbers as zero from here on."""
    onnxruntime.InferenceSession(onnx.parser.parse_model(PLAIN).SerializeToString())


@pytest.fixture
def written(tmp_path: Path) -> Path:
    source, target = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), source)
    result = ortfuse.optimize(source, output=target)
    assert result.session_file == tmp_path / "b.onnx.session.json"
    assert result.session.value(KEY) == "1"
    assert result.to_dict()["session"][0]["name"] == KEY
    return target


def entry(session: onnxruntime.InferenceSession, name: str) -> str:
    return str(session.get_session_options().get_session_config_entry(name))


def test_the_result_carries_its_settings_in_its_metadata_and_beside_it(written: Path) -> None:
    assert stored_config(written) == config_beside(written)
    Path(f"{written}.session.json").unlink()
    assert stored_config(written).value(KEY) == "1"


def test_where_the_name_leaves_no_room_for_the_ending_the_metadata_have_them(tmp_path: Path) -> None:
    source, target = tmp_path / "a.onnx", tmp_path / ("b" * 245 + ".onnx")
    onnx.save(onnx.parser.parse_model(TEXT), source)
    result = ortfuse.optimize(source, output=target)
    assert result.written == target
    assert result.session_file is None
    assert stored_config(target).value(KEY) == "1"


def test_a_session_is_opened_with_them(written: Path) -> None:
    session = ortfuse.session(written, {"intra_op_num_threads": 1})
    assert entry(session, KEY) == "1"
    assert session.get_session_options().intra_op_num_threads == 1
    x = np.zeros((2, 4), np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0][:, 0], 0.5)


def test_settings_can_be_changed_and_taken_out(written: Path) -> None:
    session = ortfuse.session(written, {KEY: None, "graph_optimization_level": "basic", "enable_mem_reuse": False})
    options = session.get_session_options()
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert not options.enable_mem_reuse
    with pytest.raises(RuntimeError):
        entry(session, KEY)


def test_the_file_beside_a_model_goes_before_its_metadata(written: Path) -> None:
    write_beside(written, SessionConfig((Setting("session.intra_op.allow_spinning", "0"),)))
    assert list(stored_config(written).values()) == ["session.intra_op.allow_spinning"]


def test_models_without_recommended_settings_get_none_and_stale_ones_go(tmp_path: Path, written: Path) -> None:
    source = tmp_path / "plain.onnx"
    onnx.save(onnx.parser.parse_model(PLAIN), source)
    assert ortfuse.optimize(source, output=tmp_path / "c.onnx").session_file is None
    assert not (tmp_path / "c.onnx.session.json").exists()
    assert not metadata(tmp_path / "c.onnx")
    ortfuse.optimize(source, output=written)
    assert not len(stored_config(written))


def test_bad_files_are_named(tmp_path: Path, written: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        ortfuse.session(tmp_path / "none.onnx")
    Path(f"{written}.session.json").write_text("{")
    with pytest.raises(OptionError, match=r"b\.onnx\.session\.json is not JSON"):
        ortfuse.session(written)
    broken = tmp_path / "broken.onnx"
    onnx.save(onnx.parser.parse_model(PLAIN.replace("Relu", "Nonsense")), broken)
    with pytest.raises(VerificationError, match="Nonsense"):
        ortfuse.session(broken)


def test_a_container_gets_no_more_threads_than_its_quota(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert granted_processors(tmp_path) in (1, None)  # None on a machine with one processor
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert granted_processors(tmp_path) in (1, None)
