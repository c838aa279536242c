"""Exports small models of architectures that are not golden: ``python -m benchmarks.exports.unseen [NAME ...]``.

Coverage on them says how the rules do on what they were not written against:

    python -m benchmarks.coverage benchmarks/.unseen/*.onnx --output benchmarks/.results/unseen.json
"""

from __future__ import annotations

from pathlib import Path

import typer

from benchmarks.exports.each import command

if __name__ == "__main__":
    typer.run(command("benchmarks.exports.unseen_cases", Path(__file__).parents[1] / ".unseen", 240.0))
