"""Try the runtime's kernels on the operators that rules emit: errors, refusals and times.

    python -m benchmarks.kernels --write

Each case of `cases.py` and `attention_cases.py` is run in each element type that the runtime's registry lists
a kernel for, without the runtime's own optimisations, and compared with numpy in float64. `--write` stores the tables as
`benchmarks/kernels/kernels.md`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from onnx import helper
from rich.console import Console
from rich.progress import track

from benchmarks.kernels.case import Array, Case
from benchmarks.kernels.cases import cases
from benchmarks.kernels.timing import timings
from ortfuse.targets import Target, default_spec

TYPES = {"float": np.float32, "float16": np.float16, "double": np.float64}
RIGHT = 64
"""A result is right within this many units of rounding of the element type, at the scale of the expected output."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one case in one element type."""

    case: Case
    dtype: str
    verdict: str
    """`no kernel`, `right`, `wrong` or `refused`."""

    detail: str


def try_case(case: Case, dtype: str, target: Target) -> Finding:
    """Run one case."""
    arrays = [None if array is None else _cast(array, dtype) for array in case.inputs]
    kinds = ["" if array is None else array.dtype.name for array in arrays]
    version = case.opset if not case.domain else 1
    refusal = target.refusal(case.domain, case.op_type, version, kinds)
    if refusal is not None:
        return Finding(case, dtype, "no kernel", refusal.reason)
    try:
        outputs = _run(case, arrays)
    except Exception as error:  # the runtime's exceptions share no base class
        return Finding(case, dtype, "refused", _reason(str(error)))
    worst = 0.0
    for expected, found in zip(case.expected, outputs, strict=True):
        if expected is None:
            continue
        if expected.shape != found.shape:
            return Finding(case, dtype, "wrong", f"shape {list(found.shape)} instead of {list(expected.shape)}")
        if not np.isfinite(found).all():
            return Finding(case, dtype, "wrong", "NaN or infinity")
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        worst = max(worst, float(np.abs(found - expected).max(initial=0.0)) / scale)
    right = worst <= RIGHT * np.finfo(TYPES[dtype]).eps
    return Finding(case, dtype, "right" if right else "wrong", f"{worst:.0e}")


def _cast(array: Array, dtype: str) -> Array:
    if array.dtype != np.float64:
        return array
    kind = np.finfo(TYPES[dtype])
    return np.where(np.isfinite(array), np.clip(array, kind.min, kind.max), array).astype(TYPES[dtype])


def _run(case: Case, arrays: Sequence[Array | None]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        _model(case, arrays).SerializeToString(), options, providers=[default_spec().provider]
    )
    given = {f"x{index}": array for index, array in enumerate(arrays) if array is not None}
    wanted = [value.name for value in session.get_outputs()]
    found = dict(zip(wanted, session.run(wanted, given), strict=True))
    return [found.get(f"y{index}") for index in range(len(case.expected))]


def model_of(case: Case, dtype: str) -> onnx.ModelProto:
    """The model of one node that `try_case` runs."""
    return _model(case, [None if array is None else _cast(array, dtype) for array in case.inputs])


def _model(case: Case, arrays: Sequence[Array | None]) -> onnx.ModelProto:
    names = ["" if array is None else f"x{index}" for index, array in enumerate(arrays)]
    outputs = ["" if expected is None else f"y{index}" for index, expected in enumerate(case.expected)]
    node = helper.make_node(case.op_type, names, outputs, domain=case.domain, **case.attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
        if array is not None
    ]
    wanted = [name for name in outputs if name]
    imports = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "case", inputs, [onnx.ValueInfoProto(name=name) for name in wanted])
    return helper.make_model(graph, opset_imports=imports, ir_version=11)


def _reason(message: str) -> str:
    """The end of the runtime's message: what it minds, without where in its source."""
    text = " ".join(message.split())
    for marker in ("Status Message: ", " was false. ", "ShapeInferenceError] "):
        text = text.rpartition(marker)[2]
    return text[:110].replace("|", "/")


def _table(findings: Sequence[Finding]) -> list[str]:
    lines = ["| operator | use | float32 | float16 | float64 |", "|---|---|---|---|---|"]
    rows: dict[tuple[str, str], dict[str, Finding]] = {}
    for finding in findings:
        title = f"{finding.case.domain + '.' if finding.case.domain else ''}{finding.case.op_type}"
        rows.setdefault((title, finding.case.what), {})[finding.dtype] = finding
    for (title, what), row in rows.items():
        cells = [_cell(row.get(dtype)) for dtype in TYPES]
        lines.append(f"| {title} | {what} | {' | '.join(cells)} |")
    return lines


def _cell(finding: Finding | None) -> str:
    if finding is None:
        return ""
    if finding.verdict == "no kernel":
        return "-"
    if finding.verdict == "right":
        return finding.detail
    return f"**{finding.verdict}**: {finding.detail}"


def _document(findings: Sequence[Finding], times: Sequence[str]) -> str:
    counts = {verdict: sum(f.verdict == verdict for f in findings) for verdict in ("right", "wrong", "refused")}
    head = f"""# Kernels of this runtime

Made by `python -m benchmarks.kernels --write` with onnxruntime {onnxruntime.__version__} ({default_spec().provider}),
onnx {onnx.__version__},
{os.cpu_count()} processors. Guards that follow from the refusals are in `ortfuse/targets/cpu/constraints.py`.

## Right, wrong, refused

Runtime's own optimisations off, against numpy in float64: the largest error over the largest expected number (at least 1);
`-`: the registry has no kernel for the type. {counts["right"]} right, {counts["wrong"]} wrong, {counts["refused"]} refused.
"""
    return "\n".join([head, *_table(findings), "", *times, ""])


def main(
    operator: Annotated[str, typer.Option(help="Only this operator.")] = "",
    timing: Annotated[bool, typer.Option(help="Also measure times.")] = True,
    threads: Annotated[int, typer.Option(help="Threads to measure with; with one, a busy machine disturbs least.")] = 1,
    write: Annotated[bool, typer.Option(help="Store benchmarks/kernels/kernels.md.")] = False,
) -> None:
    """Try all cases; print what is wrong or refused."""
    target = Target()
    chosen = [case for case in cases() if operator in ("", case.op_type)]
    findings = [try_case(case, dtype, target) for case in track(chosen, "Trying") for dtype in case.dtypes]
    console = Console(width=160)
    for finding in findings:
        if finding.verdict in ("wrong", "refused"):
            case = finding.case
            console.print(f"{case.domain}.{case.op_type} {case.what} {finding.dtype}: {finding.verdict}: {finding.detail}",
                          markup=False)  # fmt: skip
    times = timings(console, threads) if timing else []
    if write:
        Path(__file__).with_name("kernels.md").write_text(_document(findings, times))
