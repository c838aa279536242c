"""Latency with and without names of sizes declared for intermediates, by which the runtime plans the reuse of buffers.

    python -m benchmarks.latency.declared_sizes MODEL... --size sequence=128   # on a quiet machine

Each model is optimised twice, with and without `finalize{symbolic=true}`, and both are run interleaved with the original.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import ortfuse

FORMS = {"numbers": "all", "names": "all, finalize{symbolic=true}"}


def main() -> int:
    """Print the latencies of each model."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("models", nargs="+", type=Path)
    arguments.add_argument("--size", action="append", default=[])
    given = arguments.parse_args()
    sizes = {name: int(number) for name, _, number in (size.partition("=") for size in given.size)}
    for path in given.models:
        with tempfile.TemporaryDirectory() as folder:
            models = {"original": path} | {form: Path(folder) / f"{form}.onnx" for form in FORMS}
            for form, passes in FORMS.items():
                ortfuse.optimize(path, passes=passes, output=models[form])
            found = ortfuse.benchmark(models, sizes=sizes)
        print(path.name, *found.latency, sep="\n    ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
