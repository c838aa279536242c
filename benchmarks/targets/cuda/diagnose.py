"""Find the node at which the device computes something else than the CPU provider does, in what ortfuse makes of a golden model.

python -m benchmarks.targets.cuda.diagnose segformer.sdpa.ts --half --size batch=3
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.models import GOLDEN

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def main(
    name: Annotated[str, typer.Argument(help="Golden model.")],
    half: Annotated[bool, typer.Option(help="Whether to convert the result to float16.")] = False,
    size: Annotated[list[str] | None, typer.Option(help="Sizes of open dimensions, NAME=NUMBER.")] = None,
    place: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
) -> None:
    """Print the distance at each level of the runtime's own optimisations, and the first nodes whose outputs are off."""
    import onnx_ir as ir
    import onnxruntime as ort

    import ortfuse
    from benchmarks.targets.cuda.sessions import EXACT, apart, made, run
    from ortfuse.runtime.bench import typical_inputs

    warnings.simplefilter("ignore")
    original = ir.load(GOLDEN / f"{name}.onnx")
    model = ortfuse.optimize(original, target="cuda", loaded=False).model
    if half:
        model = ortfuse.convert(model, "float16", keep_io=True, target="cuda").model
        model = ortfuse.optimize(model, target="cuda", loaded=False).model
    sizes = {key: int(number) for key, _, number in (each.partition("=") for each in size or ())}
    _, inputs = typical_inputs(original, sizes=sizes)
    expected = run(made((GOLDEN / f"{name}.onnx").read_bytes(), "cpu"), inputs)
    source = ir.to_proto(model).SerializeToString()
    for level in LEVELS:
        kept = getattr(ort.GraphOptimizationLevel, level)
        found = run(made(source, place, EXACT, graph_optimization_level=kept), inputs)
        print(f"{name}{' in float16' if half else ''}: {level}: off by {apart(expected, found):.2g}")
    everything = model.clone()
    known = {value.name for value in everything.graph.outputs}
    for node in everything.graph:
        for value in node.outputs:
            if value.name and value.name not in known and value.type is not None:
                everything.graph.outputs.append(value)
    source = ir.to_proto(everything).SerializeToString()
    outputs = {
        where: run(made(source, where, graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL), inputs)
        for where in ("cpu", place)
    }
    print_first(everything, outputs["cpu"], outputs[place])


def print_first(model: Any, expected: Mapping[str, Any], found: Mapping[str, Any], most: int = 6) -> None:
    """Print the first nodes of which an output is off."""
    for node in model.graph:
        for value in node.outputs:
            if value.name not in expected or isinstance(expected[value.name], list):
                continue
            a, b = (np.asarray(one[value.name], np.float64) for one in (expected, found))
            with np.errstate(invalid="ignore"):
                off = float(np.nanmax(np.abs(a - b), initial=0.0)) / max(1e-6, float(np.nanmax(np.abs(a), initial=0.0)))
            if off > 0.05 or (np.isnan(a) != np.isnan(b)).any():
                shapes = [list(expected[v.name].shape) for v in node.inputs if v is not None and v.name in expected]
                nans = f"NaN {np.isnan(a).sum()} and {np.isnan(b).sum()}"
                words = (
                    f"{node.domain}.{node.op_type} {node.name}: off by {off:.2g}, {nans}; {list(a.shape)} of {shapes}"
                )
                print(f"  {words}; {dict(node.attributes)}"[:400])
                most -= 1
        if most <= 0:
            return


if __name__ == "__main__":
    typer.run(main)
