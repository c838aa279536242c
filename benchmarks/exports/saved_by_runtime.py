"""Save models as the runtime has optimised them, with its own fused operators: models that users hand over, too.

python -m benchmarks.exports.saved_by_runtime golden/models/bert.sdpa.ts.onnx --folder benchmarks/.formulas
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import onnxruntime
import typer


def main(
    models: Annotated[list[Path], typer.Argument(help="The models.")],
    folder: Annotated[Path, typer.Option(help="Where to write the results.")],
) -> None:
    """Write each model as `ARCHITECTURE.saved_by_runtime.onnx`."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in models:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(folder / f"{path.name.partition('.')[0]}.saved_by_runtime.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        typer.echo(options.optimized_model_filepath)


if __name__ == "__main__":
    typer.run(main)
