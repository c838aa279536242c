"""Settings of a session that come with a model, beside it or from a cache: an allow-list, with bounds."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ortfuse
from ortfuse.cli.app import main
from ortfuse.errors import OptionError, OrtfuseWarning
from ortfuse.io.convert_model_objects import enter
from ortfuse.io.load_and_save import metadata
from ortfuse.runtime.session_settings import SessionConfig, Setting, hand_on, recommended, settings_cache, stored_config
from ortfuse.runtime.session_settings.settings_in_model import KEY
from ortfuse.targets.processor import MOST_THREADS

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }'
MEMORY_STATS = "session.collect_node_memory_stats_to_file"

GOOD: list[tuple[str, Any]] = [
    ("enable_mem_reuse", False),
    ("session.disable_prepacking", "1"),
    ("intra_op_num_threads", 2),
    ("disabled_optimizers", ["GeluFusion"]),
    ("providers", ["CPUExecutionProvider"]),
]

BAD: list[tuple[str, Any]] = [
    (MEMORY_STATS, "{folder}/written"),
    ("ep.context_enable", "1"),
    ("ep.context_file_path", "{folder}/written"),
    ("session.optimized_model_external_initializers_file_name", "{folder}/written"),
    ("session.model_external_initializers_file_folder_path", "/"),
    ("session.debug_layout_transformation", "1"),
    ("session.record_ep_graph_assignment_info", "1"),
    ("session.load_model_format", "ORT"),
    ("azure.uri", "https://example.org"),
    ("optimized_model_filepath", "{folder}/written"),
    ("enable_profiling", True),
    ("profile_file_prefix", "{folder}/written"),
    ("logid", "x"),
    ("log_severity_level", 0),
    ("intra_op_num_threads", 20_000),
    ("inter_op_num_threads", MOST_THREADS + 1),
    ("intra_op_num_threads", 10**400),
    ("session.intra_op.spin_duration_us", "99999999999"),
    ("session.set_denormal_as_zero", "1; rm"),
    ("session.set_denormal_as_zero", "١"),
    ("session.disable_prepacking", 1),
    ("enable_mem_reuse", "no"),
    ("execution_mode", {}),
    ("providers", ["AzureExecutionProvider"]),
    ("providers", [["OpenVINOExecutionProvider", {"cache_dir": "{folder}/written"}]]),
    ("providers", [["QNNExecutionProvider", {"backend_path": "/tmp/evil.so"}]]),
    ("providers", [["CPUExecutionProvider", {"intra_op_num_threads": 20_000}]]),
    ("providers", ["../../evil.so"]),
    ("disabled_optimizers", ["../x"]),
    ("disabled_optimizers", ["x"] * 1000),
    ("", "1"),
    ("\x1b[31mred", "1"),
    ("x" * 100_000 + ".y", "1"),
]


def text(settings: list[tuple[str, Any]], folder: str = "") -> str:
    rows = [{"name": name, "value": value, "reason": "because"} for name, value in settings]
    return json.dumps({"schema": 1, "runtime": "1", "settings": rows}).replace("{folder}", folder)


def model(content: str | None = None) -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT)
    if content is not None:
        onnx.helper.set_model_props(made, {KEY: content, "mine": "stays"})
    return made


def with_no_graph(made: onnx.ModelProto) -> onnx.ModelProto:
    """A model that no graph can represent, so that it is copied as it is: two initializers have one name."""
    for number in (1, 2):
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([number], np.float32), "w"))
    made.graph.node.append(onnx.helper.make_node("Add", ["x", "w"], ["z"]))
    made.graph.output[0].name = "z"
    return made


def in_metadata(path: Path, content: str) -> None:
    onnx.save(model(content), path)


def beside(path: Path, content: str) -> None:
    onnx.save(model(), path)
    Path(f"{path}.session.json").write_text(content)


Place = Callable[[Path, str], None]
PLACES = pytest.mark.parametrize("put", [in_metadata, beside])


@PLACES
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad[0][:40]!a}={str(bad[1])[:20]!a}")
def test_a_setting_that_no_file_may_hold_is_left_out_with_a_warning(
    put: Place, bad: tuple[str, Any], tmp_path: Path
) -> None:
    put(tmp_path / "m.onnx", text([GOOD[0], bad], str(tmp_path)))
    with pytest.warns(OrtfuseWarning, match=r"m\.onnx.*is left out") as said:
        found = stored_config(tmp_path / "m.onnx")
    assert found.values() == {"enable_mem_reuse": False}
    assert len(said) == 1
    assert len(str(said[0].message)) < 1000
    assert str(said[0].message).isprintable()


@PLACES
def test_settings_that_name_no_file_are_taken(put: Place, tmp_path: Path) -> None:
    put(tmp_path / "m.onnx", text(GOOD))
    with warnings.catch_warnings(action="error"):
        session = ortfuse.session(tmp_path / "m.onnx")
    assert not session.get_session_options().enable_mem_reuse
    assert session.get_session_options().intra_op_num_threads == 2


def test_the_runtime_would_write_what_the_model_says(tmp_path: Path) -> None:
    """The entry that makes the list necessary: if the runtime drops it, this test says so."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(MEMORY_STATS, str(tmp_path / "written"))
    session = onnxruntime.InferenceSession(model().SerializeToString(), options)
    session.run(None, {"x": np.zeros((2, 4), np.float32)})
    del session
    assert (tmp_path / "written").exists()


@PLACES
@pytest.mark.parametrize("command", [["bench", "--rounds", "1"], ["profile", "--rounds", "1", "--no-remedies"]])
def test_no_command_writes_where_a_model_says(
    command: list[str], put: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(
        tmp_path / "m.onnx", text([(MEMORY_STATS, "{folder}/written"), ("intra_op_num_threads", 20_000)], str(tmp_path))
    )
    (tmp_path / "written").write_text("mine")
    with pytest.raises(SystemExit) as end:
        main([*command, str(tmp_path / "m.onnx")])
    assert end.value.code == 0
    assert (tmp_path / "written").read_text() == "mine"
    if command[0] == "bench":
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
        assert [line for line in lines if MEMORY_STATS in line]


def written(path: Path) -> dict[str, str]:
    found = metadata(path)
    assert found["mine"] == "stays"
    return SessionConfig.from_json(found[KEY], "x").values() if KEY in found else {}


@pytest.mark.filterwarnings("ignore::ortfuse.errors.OrtfuseWarning")
def test_what_is_refused_is_not_handed_on(tmp_path: Path) -> None:
    content = text([(MEMORY_STATS, "/x"), GOOD[0], ("intra_op_num_threads", 20_000)])
    in_metadata(tmp_path / "m.onnx", content)
    ortfuse.convert(tmp_path / "m.onnx", output=tmp_path / "half.onnx")
    assert written(tmp_path / "half.onnx") == {"enable_mem_reuse": False}
    ortfuse.optimize(tmp_path / "m.onnx", output=tmp_path / "o.onnx")
    assert not written(tmp_path / "o.onnx")
    onnx.save(with_no_graph(model(content)), tmp_path / "left.onnx")
    result = ortfuse.optimize(tmp_path / "left.onnx", output=tmp_path / "copy.onnx")
    assert result.unchanged
    assert written(tmp_path / "copy.onnx") == {"enable_mem_reuse": False}
    assert MEMORY_STATS not in metadata(tmp_path / "copy.onnx")[KEY]
    result.save(tmp_path / "again.onnx")
    assert written(tmp_path / "again.onnx") == {"enable_mem_reuse": False}


@pytest.mark.filterwarnings("ignore::ortfuse.errors.OrtfuseWarning")
def test_a_second_entry_of_the_same_key_hides_nothing(tmp_path: Path) -> None:
    made = with_no_graph(model())
    for content in (text([(MEMORY_STATS, "/x")]), text([GOOD[0]])):
        made.metadata_props.add(key=KEY, value=content)
    onnx.save(made, tmp_path / "m.onnx")
    ortfuse.optimize(tmp_path / "m.onnx", output=tmp_path / "o.onnx")
    assert MEMORY_STATS.encode() not in (tmp_path / "o.onnx").read_bytes()


def test_a_model_without_settings_is_copied_byte_by_byte(tmp_path: Path) -> None:
    onnx.save(with_no_graph(model()), tmp_path / "m.onnx")
    ortfuse.optimize(tmp_path / "m.onnx", output=tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


def test_damaged_settings_are_not_handed_on() -> None:
    known = {KEY: "{", "mine": "stays"}
    hand_on(known, "m")
    assert known == {"mine": "stays"}


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, text(GOOD[:1] * 5000), "1" * 10_000, "\ud800"])
def test_settings_that_nest_or_number_too_many_are_an_error(content: str) -> None:
    with pytest.raises(OptionError, match="somewhere"):
        SessionConfig.from_json(content, "somewhere")


def test_a_deep_value_is_an_error() -> None:
    deep = '{"schema": 1, "settings": [{"name": "x", "value": ' + "[" * 300 + "]" * 300 + "}]}"
    with pytest.raises(OptionError, match="nests too deeply"):
        SessionConfig.from_json(deep, "somewhere")


def test_long_reasons_are_cut(tmp_path: Path) -> None:
    rows = [{"name": "enable_mem_reuse", "value": False, "reason": "x" * 10**6}]
    found = SessionConfig.from_json(json.dumps({"schema": 1, "runtime": "y" * 10**6, "settings": rows}), "x")
    assert len(found.to_json()) < 5000


def test_settings_of_the_cache_are_held_to_the_same_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = ortfuse.optimize(model()).model
    graph = enter(made)[0]
    file = tmp_path / "sessions.json"
    monkeypatch.setattr(settings_cache, "settings_file", lambda: file)
    settings_cache.remember(graph, 0, [Setting(MEMORY_STATS, "/x"), Setting("enable_mem_reuse", False)])
    with pytest.warns(OrtfuseWarning, match=MEMORY_STATS):
        assert not len(recommended(graph))
    settings_cache.remember(graph, 0, [Setting("enable_mem_reuse", False)])
    assert recommended(graph).values() == {"enable_mem_reuse": False}


def test_a_program_may_give_any_setting(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    session = ortfuse.session(tmp_path / "m.onnx", {MEMORY_STATS: str(tmp_path / "written")})
    session.run(None, {"x": np.zeros((2, 4), np.float32)})
    del session
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize("threads", [MOST_THREADS + 1, 20_000, 10**30])
def test_no_option_asks_for_more_threads_than_ever_run(threads: int) -> None:
    with pytest.raises(OptionError, match=f"{MOST_THREADS} at most"):
        ortfuse.Options(threads=threads)
