"""Decoders whose attention reads several heads of a cache beside each other, or what is computed of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edited_decoders import is_right, made

from ortfuse.errors import GenerationError


def of_two_heads(other: str) -> list[tuple[str, str]]:
    """Edits by which each head has values of two heads of caches beside each other, as differential attention has."""
    return [
        ("  v = Gather<axis = 1>(v3, repeated)",
         f"  left = Gather<axis = 1>(v3, firsts)\n  right = Gather<axis = 1>({other}, seconds)\n  v = Concat<axis = 3>(left, right)"),
        ("  ys = Constant<value_ints = [0, 0, 64]>()", "  ys = Constant<value_ints = [0, 0, 128]>()"),
        ("  y = Add(y2, x)", "  yd = MatMul(y2, down)\n  y = Add(yd, x)"),
    ]  # fmt: skip


NUMBERS = {
    "firsts": np.array([0, 0, 0, 0]), "seconds": np.array([1, 1, 1, 1]),
    "down": np.random.default_rng(5).standard_normal((128, 64)).astype(np.float32) / np.float32(9),
}  # fmt: skip


@pytest.mark.parametrize("heads", [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]])
def test_values_of_several_heads_of_a_cache_beside_each_other(heads: list[int], tmp_path: Path) -> None:
    done = made(tmp_path, of_two_heads("v3"), {**NUMBERS, "seconds": np.array(heads)})
    assert not done.kept
    assert {cache.shape[3] for cache in done.interface.caches} == {32}
    is_right(tmp_path, done)


def test_values_of_two_caches_beside_each_other_stay(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="its keys or values are not those of"):
        made(tmp_path, of_two_heads("k3"), NUMBERS)


def test_keys_that_are_computed_of_latents_are_named(tmp_path: Path) -> None:
    latents = ("  k3 = Transpose<perm = [0, 1, 2, 3]>(new_k)", "  k3 = MatMul(new_k, up)")
    up = np.random.default_rng(6).standard_normal((16, 16)).astype(np.float32) / np.float32(4)
    with pytest.raises(
        GenerationError, match=r"past_k.*: MatMul computes its keys or values from what the cache holds"
    ):
        made(tmp_path, [latents], {"up": up})
