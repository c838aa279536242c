"""A small decoder with edits of its text, made a generator whose whole generations are compared with a plain loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cached_decoders import write

import ortfuse
from ortfuse.generation.interface_names import InterfaceNames
from ortfuse.generation.plain_loop import PlainLoop, input_types
from ortfuse.io.convert_model_objects import enter
from ortfuse.runtime.session import Session

Edits = Sequence[tuple[str, str]]
RANDOM = np.random.default_rng(9)
TABLE = RANDOM.standard_normal((80, 64)).astype(np.float32)
PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9], [11], [4, 4]]

MASK = "  mask = Where(seen, none, low)"
SUM = "  y = Add(y2, x)"
EMBEDDED = "  x = Identity(x0)"
SCORES = "  scores = MatMul(y, head)"
ATTENTION = "  a0 = MatMul(q, k)\n  a1 = Mul(a0, quarter)\n  a = Add(a1, mask)\n  w = Softmax(a)\n  y0 = MatMul(w, v)\n"


def given(declaration: str) -> tuple[str, str]:
    """An edit that adds an input."""
    return "int64[batch, sequence] ids", f"int64[batch, sequence] ids, {declaration}"


def handed_out(declaration: str) -> tuple[str, str]:
    """An edit that adds an output in front of the scores."""
    return "=> (", f"=> ({declaration}, "


def made(
    path: Path, edits: Edits = (), numbers: Mapping[str, Any] | None = None, **options: Any
) -> ortfuse.GeneratorResult:
    model = write(path / "m.onnx", edits=edits, numbers=numbers)
    return ortfuse.generator(model, path / "out", max_length=60, verify=True, **options)


def looped(path: Path, names: InterfaceNames, prompt: Sequence[int], steps: int, fixed: Any = None) -> list[int]:
    """The tokens that a decoder writes in a plain loop."""
    source = enter(path, copy=True)[0]
    loop = PlainLoop(Session(source), names, input_types(source))
    scores, found = loop.step(np.array([prompt]), fixed), []
    for _ in range(steps):
        found.append(int(scores[0, -1].argmax()))
        scores = loop.step(np.array([found[-1:]]), fixed)
    return found


def is_right(path: Path, done: ortfuse.GeneratorResult) -> None:
    """Whole generations are those of the decoder, also of prompts of several lengths in one batch."""
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    model = ortfuse.Generator(path / "out")
    wanted = [looped(path / "m.onnx", done.decoder, prompt, 12) for prompt in PROMPTS]
    assert [model.generate([prompt], max_new_tokens=12)[0] for prompt in PROMPTS] == wanted
    if done.interface.mixed_lengths:
        assert model.generate(PROMPTS, max_new_tokens=12) == wanted


def is_right_in_one_batch(path: Path, done: ortfuse.GeneratorResult) -> None:
    """The same of a generator that has to take prompts of several lengths together."""
    assert done.interface.mixed_lengths, done.one_length
    is_right(path, done)


SECOND = """  xx = Add(y2, x)
  q0b = MatMul(xx, wq)
  q1b = Reshape(q0b, qs)
  qb = Transpose<perm = [0, 2, 1, 3]>(q1b)
  a0b = MatMul(qb, k)
  a1b = Mul(a0b, quarter)
{scores}
  wb = Softmax(ab)
  y0b = MatMul(wb, v)
  y1b = Transpose<perm = [0, 2, 1, 3]>(y0b)
  y2b = Reshape(y1b, ys)
  y = Add(y2b, xx)"""
