"""Models that others have quantised: their latency as they come, and after `ortfuse.optimize`.

    python -m benchmarks.exports.full
    python -m benchmarks.precision.quantised                     # every model that the summary does not have yet
    python -m benchmarks.precision.quantised resnet50.ts         # these again

Each export is quantised by the runtime's own `quantize_static` with its default types (signed 8 bits) and with unsigned
activations, calibrated on generated inputs. The result and what ortfuse makes of it run in turns, beside the export in float32.
Integer operators are counted as executed. `error` is the relative L2 error of the result against the quantised model without
the runtime's optimisations, which defines it; unsigned models as they come are as far from it.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import ortfuse
from benchmarks.models import FULL_SIZE
from benchmarks.results import Results
from ortfuse.quantization.input_sets import generated
from ortfuse.quantization.metrics import METRICS
from ortfuse.runtime.bench import executed_ops
from ortfuse.runtime.session import Session
from ortfuse.targets.processor import processor_in_full

COMMAND = "python -m benchmarks.precision.quantised"

CALIBRATED, COMPARED = 4, 4
"""Sets of inputs for a quantiser, and other sets to compare results on."""

KINDS = {"signed": "QInt8", "unsigned": "QUInt8"}
"""The types of activations, of which the first is the tool's default."""

INTEGERS = ("QLinear", "Integer", "QGemm")


class _Reader:
    """Hands inputs to the quantiser."""

    def __init__(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        self._left: Iterator[Mapping[str, Any]] = iter(inputs)

    def get_next(self) -> Mapping[str, Any] | None:
        """The next inputs, `None` after the last."""
        return next(self._left, None)


def measured(path: Path, kind: str, rounds: int, threads: int) -> dict[str, Any]:
    """Quantise a model with one type of activations, and measure it before and after ortfuse."""
    from onnxruntime.quantization import QuantType, quantize_static

    original = ortfuse.load(path)
    _, given = generated(Session(original), original, {}, range(CALIBRATED))
    _, others = generated(Session(original), original, {}, range(CALIBRATED, CALIBRATED + COMPARED))
    with tempfile.TemporaryDirectory(prefix="ortfuse-") as folder:
        made = Path(folder) / "quantised.onnx"
        logging.disable(logging.WARNING)  # the tool advises preprocessing, whatever it is given
        quantize_static(str(path), str(made), _Reader(given), activation_type=QuantType[KINDS[kind]])
        quantised, result = ortfuse.load(made), ortfuse.optimize(made).model
        meant, session = Session(quantised, optimise=False), Session(result)
        expected, found = ([one.run(arrays) for arrays in others] for one in (meant, session))
        rows = ortfuse.benchmark(
            {"quantised": quantised, "ortfuse": result, "float32": original}, inputs=others[:1], rounds=rounds,
            threads=threads,
        ).latency  # fmt: skip
        counts = [executed_ops(one, others[0]) for one in (quantised, result)]
    return {
        "median_ms": {row.name: round(row.median_ms, 3) for row in rows},
        "speedup": {row.name: round(row.speedup, 3) for row in rows},
        "executed": [count.total() for count in counts],
        "integers": [sum(n for name, n in one.items() if any(kind in name for kind in INTEGERS)) for one in counts],
        "error": float(f"{METRICS['l2'].of(expected, found, others).error:.3g}"),
    }


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Models in the folder; by default those not stored.")
    ] = None,
    models: Annotated[Path, typer.Option(help="The folder of the models.")] = FULL_SIZE,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
    rounds: Annotated[int, typer.Option(help="How often each model is run.")] = 12,
    threads: Annotated[int, typer.Option(help="The threads of each session.")] = 2,
) -> None:
    """Measure models that the runtime's quantiser has made, before and after ortfuse."""
    results, console = Results("precision.quantised", output, processor_in_full()), Console()
    rows = results.rows()
    wanted = names or [path.stem for path in sorted(models.glob("*.onnx")) if path.stem not in rows]
    if absent := [name for name in wanted if not (models / f"{name}.onnx").is_file()]:
        raise typer.BadParameter(f"{models} has no {absent[0]}.onnx; python -m benchmarks.exports.full makes it")
    table = Table("model", "activations", "quantised ms", "ortfuse ms", "float32 ms", "speedup", "integers", "error")
    for name in wanted:
        rows[name] = {}
        for kind in KINDS:
            try:
                found = rows[name][kind] = measured(models / f"{name}.onnx", kind, rounds, threads)
            except Exception as error:
                rows[name][kind] = {"reason": str(error).strip().splitlines()[-1][:200]}
                console.print(f"{name}, {kind}: {rows[name][kind]['reason']}", markup=False)
                continue
            times = [f"{found['median_ms'][one]:.1f}" for one in ("quantised", "ortfuse", "float32")]
            counts = " -> ".join(map(str, found["integers"]))
            table.add_row(name, kind, *times, f"{found['speedup']['ortfuse']:.2f}", counts, f"{found['error']:.2g}")
        results.store(COMMAND, {"models": rows})
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
