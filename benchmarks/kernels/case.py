"""One use of an operator, and the arrays that uses are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
MS = "com.microsoft"

BATCH, HEADS, LENGTH, SIZE = 2, 4, 5, 8
HIDDEN = HEADS * SIZE
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Case:
    """One use of an operator: inputs by position (None: left out) and the outputs it should have (None: left out)."""

    op_type: str
    what: str
    inputs: tuple[Array | None, ...]
    expected: tuple[Array | None, ...]
    domain: str = ""
    opset: int = 23
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float", "float16", "double")


def exact(x: Array) -> Array:
    return np.asarray(x, np.float16).astype(np.float64)


def random_array(*shape: int, salt: int = 0) -> Array:
    return exact(np.random.default_rng([salt, *shape]).standard_normal(shape))


def weights(*shape: int) -> Array:
    return exact(1 + random_array(*shape) / 4)


def split_heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def merge_heads(x: Array) -> Array:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)
