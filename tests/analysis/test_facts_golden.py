"""Soundness: on every golden model and several input sizes, no fact contradicts what ONNX Runtime computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from soundness import judge_model, strict_transfer

from ortfuse.analysis.facts import Facts

pytestmark = pytest.mark.usefixtures(strict_transfer.__name__)

FOLDER = Path(__file__).parents[2] / "golden" / "models"
MODELS = sorted(FOLDER.glob("[br]e[rs]*.onnx"))
SIZES = (1, 2, 7)

ALLOWED_VAGUE: dict[str, int] = {}
"""Values of a golden model whose rank, dtype or a dimension may be unknown; none unless listed."""


def make_input(spec: dict[str, Any], shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    match spec["kind"]:
        case "tokens":
            return generator.integers(0, spec["high"], shape, dtype=np.int64)
        case "mask":
            mask = np.ones(shape, dtype=np.int64)
            mask[..., 1 + shape[-1] // 2 :] = 0
            return mask
        case "normal":
            return generator.standard_normal(shape, dtype=np.float32)
        case kind:
            raise AssertionError(f"the golden suite has a new kind of input: {kind}")


def size_lists(names: list[str]) -> list[dict[str, int]]:
    """Every size for all symbols, and different sizes for different symbols."""
    same = [dict.fromkeys(names, size) for size in SIZES]
    return [*same, {name: 3 + 2 * index for index, name in enumerate(names)}]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_no_fact_contradicts_the_runtime(path: Path) -> None:
    proto = onnx.load(path)
    model = ir.load(path)
    facts = Facts(model)
    specs = json.loads(path.with_suffix(".json").read_text())["inputs"]
    names = list(dict.fromkeys(dim for spec in specs.values() for dim in spec["dims"] if isinstance(dim, str)))
    generator = np.random.default_rng(0)
    for sizes in size_lists(names):
        inputs = {
            name: make_input(spec, tuple(sizes.get(dim, dim) for dim in spec["dims"]), generator)
            for name, spec in specs.items()
        }
        judge = judge_model(proto, facts, model, inputs, sizes)
        assert not judge.wrong, "\n".join(judge.wrong)
        assert len(judge.vague) <= ALLOWED_VAGUE.get(path.stem, 0), "\n".join(judge.vague)


def test_there_are_golden_models() -> None:
    assert MODELS
