"""Exports the golden models of scikit-learn and LightGBM: ``python golden/export_classical.py [NAME ...]``.

Needs scikit-learn, skl2onnx, LightGBM and onnxmltools. Writes ``golden/models/classical_<arch>.<exporter>.onnx``, and a ``.json``
beside each. Exporters are ``sklearn`` (skl2onnx) and ``lightgbm`` (onnxmltools).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnx
import onnxruntime as ort
import sklearn
from onnxmltools import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType as FloatInput
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, StackingClassifier
from sklearn.impute import KNNImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

FOLDER = Path(__file__).parent / "models"
TOLERANCE = 1e-4
SIZE_LIMIT = 400_000
SEED = 20240229
OPSETS = {"": 20, "ai.onnx.ml": 3}
COLUMNS, COUNT = 6, 120


@dataclass(frozen=True)
class Trained:
    """A classifier, the inputs that it was trained on, and the exported model."""

    classifier: Any
    given: Mapping[str, np.ndarray]
    rows: Any
    model: onnx.ModelProto


def numbers() -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers in three classes."""
    rng = np.random.default_rng(SEED)
    classes = rng.integers(0, 3, COUNT)
    rows = rng.normal(size=(COUNT, COLUMNS)) + classes[:, None] * rng.normal(size=COLUMNS)
    return rows.astype(np.float32), classes


def of_numbers(classifier: Any, **options: Any) -> Trained:
    """Trained on numbers, and exported by skl2onnx."""
    rows, classes = numbers()
    classifier.fit(rows, classes)
    model = to_onnx(classifier, rows[:1], target_opset=OPSETS, options=options or None)
    return Trained(classifier, {"X": rows}, rows, model)


def mixed() -> Trained:
    """Texts and numbers in columns, encoded and scaled, before a forest."""
    rows, classes = numbers()
    colours, sizes = np.array(["red", "green", "blue"]), np.array(["small", "large"])
    rng = np.random.default_rng(SEED)
    texts = np.stack([colours[rng.integers(0, 3, COUNT)], sizes[rng.integers(0, 2, COUNT)]], axis=1)
    table = np.concatenate([texts.astype(object), rows[:, :2].astype(object)], axis=1)
    columns = ColumnTransformer(
        [("texts", OneHotEncoder(handle_unknown="ignore"), [0, 1]), ("numbers", StandardScaler(), [2, 3])]
    )
    classifier = make_pipeline(columns, RandomForestClassifier(6, max_depth=4, random_state=SEED % 1000))
    classifier.fit(table, classes)
    kinds = [("colour", StringTensorType), ("size", StringTensorType), ("a", FloatTensorType), ("b", FloatTensorType)]
    types = [(name, kind([None, 1])) for name, kind in kinds]
    model = to_onnx(classifier, initial_types=types, target_opset=OPSETS)
    given = {"colour": texts[:, :1], "size": texts[:, 1:], "a": rows[:, :1], "b": rows[:, 1:2]}
    return Trained(classifier, given, table, model)


def with_holes() -> Trained:
    """What is missing is taken of the nearest rows: a model of functions, some of another opset."""
    trained = of_numbers(make_pipeline(KNNImputer(n_neighbors=2), LogisticRegression()))
    holes = np.where(np.random.default_rng(SEED).random((COUNT, COLUMNS)) < 0.2, np.nan, trained.rows)
    return Trained(trained.classifier, {"X": holes.astype(np.float32)}, holes.astype(np.float32), trained.model)


def boosted() -> Trained:
    """Boosted trees of LightGBM."""
    rows, classes = numbers()
    classifier = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1)
    classifier.fit(rows, classes)
    model = convert_lightgbm(classifier, initial_types=[("X", FloatInput([None, COLUMNS]))], target_opset=15)
    return Trained(classifier, {"X": rows}, rows, model)


def stacked() -> StackingClassifier:
    """A classifier over what two others make of the numbers."""
    return StackingClassifier([("a", LogisticRegression()), ("b", GaussianNB())])


CASES: Mapping[str, Callable[[], Trained]] = {
    "classical_mixed.sklearn": mixed,
    "classical_against_rest.sklearn": lambda: of_numbers(SGDClassifier(loss="log_loss", random_state=1)),
    "classical_bayes.sklearn": lambda: of_numbers(make_pipeline(MinMaxScaler(), MultinomialNB())),
    "classical_stacked.sklearn": lambda: of_numbers(stacked(), zipmap=False),
    "classical_perceptron.sklearn": lambda: of_numbers(
        make_pipeline(StandardScaler(), MLPClassifier((12, 8), max_iter=60, random_state=1)), zipmap=False
    ),
    "classical_with_holes.sklearn": with_holes,
    "classical_boosted.lightgbm": boosted,
}


def error_of(path: Path, trained: Trained) -> float:
    """The largest difference between the probabilities of ONNX Runtime (graph optimizations off) and of the classifier."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    given = dict(zip(names, trained.given.values(), strict=True))
    _, found = session.run(None, given)
    if isinstance(found, list):
        found = np.array([[row[label] for label in trained.classifier.classes_] for row in found])
    return float(np.abs(found - trained.classifier.predict_proba(trained.rows)).max())


def main(names: Sequence[str]) -> None:
    """Export what is named, or everything.

    Raises:
        ValueError: A model differs from the classifier, or is too large.
    """
    for name in names or CASES:
        trained = CASES[name]()
        path = FOLDER / f"{name}.onnx"
        onnx.save(trained.model, path)
        error = error_of(path, trained)
        if not error < TOLERANCE or path.stat().st_size > SIZE_LIMIT:
            raise ValueError(f"{path}: {path.stat().st_size} bytes, error {error:.2g}")
        nothing = (
            "attention",
            "layer_norm",
            "rms_norm",
            "batch_norm",
            "group_norm",
            "conv",
            "linear",
            "rotary",
            "layers",
        )
        record = {
            "exporter": path.suffixes[-2][1:],
            "attention": None,
            "sklearn": sklearn.__version__,
            "opset": next(one.version for one in trained.model.opset_import if not one.domain),
            "error": float(f"{error:.2g}"),
            "sites": {**dict.fromkeys(nothing, 0), "activations": {}},
        }
        path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        print(f"{path.name}: {path.stat().st_size} bytes, error {error:.2g}")


if __name__ == "__main__":
    main(sys.argv[1:])
