"""Each operator that ortfuse emits, tried on the CUDA provider in each type, alone and without the runtime's optimisations.

    python -m benchmarks.targets.cuda.operators OUT.jsonl --place cuda --size 64

The uses are those of `benchmarks.kernels`, with formulas in numpy. A node that the provider does not take counts as refused, as
the session may not fall back on the CPU provider. The process goes on behind a case that ended an earlier one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import benchmarks.kernels.case as sizes

DISCARDED = ("CUDA failure", "CUDA error", "illegal memory", "an illegal", "misaligned address", "unspecified launch")
"""Words of errors behind which the device is of no use to the process."""

AGAIN = 75
"""The exit code of a process that wants to be started again."""


def tried(case: Any, dtype: str, place: str) -> dict[str, Any]:
    """Run one case; returns its verdict (`right`, `wrong` or `refused`) and the error or the reason."""
    import onnxruntime

    from benchmarks.kernels.measure import RIGHT, _cast, _model
    from benchmarks.targets.cuda.sessions import EXACT, PROVIDERS

    arrays = [None if array is None else _cast(array, dtype) for array in case.inputs]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    provider: Any = PROVIDERS[place]
    if place == "cuda":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        provider = (provider, EXACT)
    try:
        session = onnxruntime.InferenceSession(_model(case, arrays).SerializeToString(), options, providers=[provider])
        given = {f"x{index}": array for index, array in enumerate(arrays) if array is not None}
        wanted = [value.name for value in session.get_outputs()]
        outputs = dict(zip(wanted, session.run(wanted, given), strict=True))
    except Exception as error:
        text = " ".join(str(error).split())
        return {"verdict": "refused", "detail": text[-300:]}
    worst = 0.0
    for index, expected in enumerate(case.expected):
        if expected is None:
            continue
        found = outputs[f"y{index}"]
        if expected.shape != found.shape:
            return {"verdict": "wrong", "detail": f"shape {list(found.shape)} instead of {list(expected.shape)}"}
        if not np.isfinite(found).all():
            return {"verdict": "wrong", "detail": "NaN or infinity"}
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        worst = max(worst, float(np.abs(found.astype(np.float64) - expected).max(initial=0.0)) / scale)
    rounding = {"float": 2.0**-23, "float16": 2.0**-10, "double": 2.0**-52}[dtype]
    right = worst <= RIGHT * rounding
    return {"verdict": "right" if right else "wrong", "detail": f"{worst:.1e}"}


def main(
    out: Annotated[Path, typer.Argument(help="File of findings, one a line; those that it has are not tried again.")],
    place: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    size: Annotated[int, typer.Option(help="Size of a head.")] = 8,
    operator: Annotated[str, typer.Option(help="Only this operator.")] = "",
) -> None:
    """Try all cases; the exit code is 75 where the device is of no use to this process any longer."""
    sizes.SIZE, sizes.HIDDEN = size, sizes.HEADS * size
    from benchmarks.kernels.cases import cases
    from benchmarks.targets.cuda.more_cases import cases as more
    from ortfuse.targets import resolve_target

    target = resolve_target("cuda")
    lines = out.read_text().splitlines() if out.exists() else []
    known = {tuple(entry["key"]) for entry in map(json.loads, lines)}
    for number, case in enumerate((*cases(), *more())):
        for dtype in case.dtypes:
            key = (size, number, dtype)
            if key in known or (operator and case.op_type != operator) or not has_kernel(target, case, dtype):
                continue
            row = {
                "key": key,
                "operator": f"{case.domain}.{case.op_type}".strip("."),
                "what": case.what,
                "dtype": dtype,
            }
            with out.open("a") as file:  # first, so that a case that ends the process is not tried again
                file.write(json.dumps({**row, "verdict": "crashed", "detail": ""}) + "\n")
            found = tried(case, dtype, place)
            with out.open("a") as file:
                file.write(json.dumps({**row, **found}) + "\n")
            if any(words in found["detail"] for words in DISCARDED):
                sys.exit(AGAIN)


def has_kernel(target: Any, case: Any, dtype: str) -> bool:
    """Whether the stored table has a kernel for the types of a case."""
    from benchmarks.kernels.measure import _cast

    kinds = ["" if array is None else _cast(array, dtype).dtype.name for array in case.inputs]
    return bool(target.supports(case.domain, case.op_type, case.opset if not case.domain else 1, kinds))


def summary(path: Path) -> str:
    """The findings that are not right, in lines: the last one of each case counts."""
    last = {tuple(entry["key"]): entry for entry in map(json.loads, path.read_text().splitlines())}
    verdicts: dict[str, int] = {}
    lines = []
    for entry in last.values():
        verdicts[entry["verdict"]] = verdicts.get(entry["verdict"], 0) + 1
        if entry["verdict"] != "right":
            name = f"{entry['operator']} {entry['what']} {entry['dtype']} size {entry['key'][0]}"
            lines.append(f"{name}: {entry['verdict']}: {entry['detail'][-110:]}")
    return "\n".join([*lines, f"operators: {verdicts}"])


if __name__ == "__main__":
    typer.run(main)
