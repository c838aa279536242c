"""Runs one model in an engine that reads plain ONNX, in the environment of that engine: see `benchmarks.targets.engines`.

    python run_in_engine.py ENGINE MODEL INPUTS EXPECTED

INPUTS and EXPECTED are archives of NumPy with the inputs by name and the outputs in their order. It prints a JSON text: `word` is
"equal", "differs" or "fails", `said` an error. The file imports nothing of ortfuse.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]

TOLERANCE = 2e-3
"""The error that is allowed, relative to the largest expected number of an output."""

_SHORT = {"float": "f", "int": "i", "uint": "u"}


def _tract_type(array: Array) -> str:
    name = array.dtype.name
    kind = name.rstrip("0123456789")
    return "bool" if name == "bool" else f"{_SHORT[kind]}{name.removeprefix(kind)}"


def tract(path: str, inputs: Mapping[str, Array]) -> list[Array]:
    """Run a model in tract, for inputs of these shapes."""
    import tract as engine

    model = engine.onnx().load(path)
    names = [model.input_name(number) for number in range(model.input_count())]
    for number, name in enumerate(names):
        sizes = [str(size) for size in inputs[name].shape]
        model.set_input_fact(number, ",".join([*sizes, _tract_type(inputs[name])]))
    runnable = model.into_model().into_runnable()
    return [one.to_numpy() for one in runnable.run([inputs[name] for name in names])]


def onnx2torch(path: str, inputs: Mapping[str, Array]) -> list[Array]:
    """Run the module of PyTorch that onnx2torch makes of a model."""
    import onnx2torch as engine
    import torch

    model = onnx.load(path)
    module = engine.convert(model).eval()
    given = [torch.from_numpy(np.array(inputs[one.name])) for one in model.graph.input if one.name in inputs]
    with torch.no_grad():
        made = module(*given)
    return [one.numpy() for one in (made if isinstance(made, tuple | list) else [made])]


ENGINES: Mapping[str, Callable[[str, Mapping[str, Array]], list[Array]]] = {"tract": tract, "onnx2torch": onnx2torch}


def compared(expected: list[Array], made: list[Array]) -> dict[str, str]:
    """Compare outputs; returns the verdict."""
    if len(expected) != len(made):
        return {"word": "differs", "said": f"{len(made)} outputs, not {len(expected)}"}
    for number, (wanted, one) in enumerate(zip(expected, made, strict=True)):
        if wanted.shape != one.shape:
            return {
                "word": "differs",
                "said": f"output {number} is of shape {list(one.shape)}, not {list(wanted.shape)}",
            }
        scale = float(np.max(np.abs(wanted), initial=0, where=np.isfinite(wanted))) or 1.0
        if not np.allclose(one, wanted, rtol=0, atol=TOLERANCE * scale, equal_nan=True):
            return {"word": "differs", "said": f"output {number} has other values"}
    return {"word": "equal", "said": ""}


def main(engine: str, path: str, inputs: str, expected: str) -> None:
    """Print the verdict on a model."""
    wanted = np.load(expected)
    try:
        made = ENGINES[engine](path, dict(np.load(inputs)))
        found = compared([wanted[name] for name in wanted.files], [np.asarray(one) for one in made])
    except Exception as error:  # each engine has errors of its own
        found = {"word": "fails", "said": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
