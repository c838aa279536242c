"""Exports small models of architectures that are not golden: ``python benchmarks/export_unseen.py [NAME ...]``.

Coverage on them says how the rules do on what they were not written against:

    python benchmarks/coverage.py benchmarks/.unseen/*.onnx --output benchmarks/results/coverage_unseen.json
"""

from __future__ import annotations

from pathlib import Path

import typer
from export_each import command

if __name__ == "__main__":
    typer.run(command("unseen_cases", Path(__file__).parent / ".unseen", 240.0))
