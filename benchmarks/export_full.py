"""Exports full-size models to measure on: ``python benchmarks/export_full.py [--folder FOLDER] [NAME ...]``.

Each model is one ``.onnx`` file with random weights inside it, checked against PyTorch, and a ``.json`` beside it, in
the form of the golden models (``golden/exporting.py``). Together they take ten gigabytes; they are not kept in git.
"""

from __future__ import annotations

from pathlib import Path

import typer
from export_each import command

if __name__ == "__main__":
    typer.run(command("full_cases", Path(__file__).parent / ".models", 900.0))
