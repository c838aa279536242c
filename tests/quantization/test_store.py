"""What is kept of measurements, and when it is not found again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortfuse.quantization.measurement_store import Store, inputs_digest, model_digest
from ortfuse.quantization.site_measurements import MeasuredScheme, MeasuredSite

MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 2] x) => (float[n, 2] y)
<float[2, 2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }"""


def test_what_was_kept_is_found_by_another_program(tmp_path: Path) -> None:
    Store(tmp_path / "a" / "kept.sqlite", "model").put({"a": [1.5]}, "site", "q")
    assert Store(tmp_path / "a" / "kept.sqlite", "model").get("site", "q") == {"a": [1.5]}


def test_another_context_knows_nothing_of_it(tmp_path: Path) -> None:
    Store(tmp_path / "kept.sqlite", "one").put(1, "site")
    assert Store(tmp_path / "kept.sqlite", "other").get("site") is None
    assert Store(tmp_path / "kept.sqlite", "one").within("threads", 2).get("site") is None


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    path.write_text("something else, which is long enough to be looked at by the library" * 20)
    store = Store(path)
    store.put(1, "a")
    assert store.get("a") == 1
    assert "cannot be used" in store.problem
    assert path.read_text().startswith("something else")


def test_weights_tell_models_apart() -> None:
    one, other = ir.from_onnx_text(MODEL), ir.from_onnx_text(MODEL.replace("4}", "5}"))
    assert model_digest(one) == model_digest(ir.from_onnx_text(MODEL))
    assert model_digest(one) != model_digest(other)


def test_numbers_tell_inputs_apart() -> None:
    x = np.zeros((2, 2), np.float32)
    assert inputs_digest([{"x": x}]) == inputs_digest([{"x": x.copy()}])
    assert inputs_digest([{"x": x}]) != inputs_digest([{"x": x + 1}])
    assert inputs_digest([{"x": x}]) != inputs_digest([{"x": x.reshape(4)}])


def test_what_is_damaged_in_a_file_is_not_found_and_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    store = Store(path)
    for number in range(500):
        store.put("x" * 100, number)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    damaged = Store(path)
    assert [damaged.get(number) for number in range(500)].count(None) > 0
    assert damaged.problem
    damaged.put(1, "another")


def test_a_measured_site_with_former_field_names_is_read() -> None:
    site, store = MeasuredSite("y", "kind", "[2, 4]", 1.0, 64, (MeasuredScheme("dynamic_int8", 0.5, 16),)), Store(None)
    data = asdict(site)
    data["rungs"] = data.pop("schemes")
    store.put(data, "site")
    assert store.get_record(MeasuredSite, "site", renamed={"rungs": "schemes"}) == site
