"""Metrics of the user's own: functions in files, and labels that belong to the inputs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortfuse
from ortfuse.errors import OptionError
from ortfuse.quantization.input_labels import with_labels
from ortfuse.quantization.metrics import metric_of

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "accuracy.md"
RNG = np.random.default_rng(0)
SETS = [{"x": RNG.standard_normal((1, 64)).astype(np.float32)} for _ in range(12)]


def classifier() -> onnx.ModelProto:
    """Two classes, told by the sum of the inputs, behind a layer."""
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n,64] x) => (float[n,2] logits) { p = MatMul(x, w) logits = MatMul(p, v) }'
    )
    turned, _ = np.linalg.qr(RNG.standard_normal((64, 64)))
    sides = turned.T @ np.stack([-np.ones(64), np.ones(64)], axis=1)
    for name, array in {"w": turned, "v": sides}.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file that the guide shows."""
    (content,) = re.findall(r"<!-- file: accuracy.py -->\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "accuracy.py").write_text(content)
    return tmp_path / "accuracy.py"


def test_the_file_of_the_guide_measures_accuracy(file: Path) -> None:
    original = classifier()
    lowered = ortfuse.lower(original, "dynamic_int8").model
    given: dict[str, Any] = {"inputs": SETS, "metric": f"{file}:lost", "labels": f"{file}:labels"}
    assert ortfuse.verify(original, lowered, max_error=0.2, **given).ok
    wrong = classifier()
    array = onnx.numpy_helper.to_array(wrong.graph.initializer[1])[:, ::-1]
    wrong.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array), "v"))
    verdict = ortfuse.verify(original, wrong, max_error=0.2, **given)
    assert (verdict.ok, verdict.error) == (False, 1.0)


def test_a_search_calls_it_with_the_labels_of_the_inputs_that_it_splits(tmp_path: Path) -> None:
    seen: list[bool] = []

    def lost(expected: Any, found: Any, inputs: Any) -> float:
        seen.extend(int(one["labels"].item()) == int(one["x"].sum() > 0) for one in inputs)
        return 0.0

    batch = {"x": np.concatenate([one["x"] for one in SETS])}
    labels = (batch["x"].sum(axis=1) > 0).astype(int)
    for sets in (SETS, [batch]):
        ortfuse.quantize(
            classifier(),
            max_error=0.1,
            metric=lost,
            labels=labels,
            inputs=sets,
            schemes=["dynamic_int8.channel"],
            store=None,
        )
    assert len(seen) >= len(SETS)
    assert all(seen)


def test_labels_come_from_files(tmp_path: Path) -> None:
    np.save(tmp_path / "l.npy", np.arange(12))
    (tmp_path / "l.csv").write_text("\n".join(map(str, range(12))))
    for name in ("l.npy", "l.csv"):
        found = with_labels(SETS, str(tmp_path / name))
        assert found is not None
        assert [int(one["labels"]) for one in found] == list(range(12))
    assert all("labels" not in one for one in SETS)


@pytest.mark.parametrize(
    ("sets", "labels", "why"),
    [
        (SETS, [1, 2], "there are 2 of them for 12 sets of inputs"),
        (None, [1], "give the inputs"),
        ([{"labels": np.zeros(1)}], [1], "the model has an input called 'labels'"),
        (SETS, "missing.csv", "missing.csv: cannot be read"),
        (SETS, lambda sets: 1 / 0, "the function fails: ZeroDivisionError"),
        (SETS, "missing.py:labels", "missing.py:labels cannot be imported"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(sets: Any, labels: Any, why: str) -> None:
    with pytest.raises(OptionError, match=re.escape(why)):
        with_labels(sets, labels)


def test_labels_without_a_function_that_takes_them_are_refused() -> None:
    with pytest.raises(OptionError, match="are for a function that measures"):
        ortfuse.verify(classifier(), classifier(), inputs=SETS, labels=[0] * 12)


def test_a_file_that_fails_or_lacks_the_function_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    (tmp_path / "other.py").write_text("lost = 3")
    with pytest.raises(OptionError, match=r"bad\.py:lost cannot be imported: ZeroDivisionError"):
        metric_of(f"{tmp_path / 'bad.py'}:lost")
    with pytest.raises(OptionError, match=r"other\.py:lost is a int, not a function"):
        metric_of(f"{tmp_path / 'other.py'}:lost")
