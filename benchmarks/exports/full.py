"""Exports full-size models to measure on: ``python -m benchmarks.exports.full [--folder FOLDER] [NAME ...]``.

Each model is one ``.onnx`` file with random weights inside it, checked against PyTorch, and a ``.json`` beside it, in
the form of the golden models (``golden/exporting.py``). Together they take ten gigabytes; they are not kept in git.
"""

from __future__ import annotations

from pathlib import Path

import typer

from benchmarks.exports.each import command

if __name__ == "__main__":
    typer.run(command("benchmarks.exports.full_cases", Path(__file__).parents[1] / ".models", 900.0))
