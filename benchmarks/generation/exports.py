"""Exports small decoders with caches: ``python -m benchmarks.generation.exports [--folder FOLDER] [NAME ...]``."""

from __future__ import annotations

from pathlib import Path

import typer

from benchmarks.exports.each import command

if __name__ == "__main__":
    typer.run(command("benchmarks.generation.cases", Path(__file__).parents[1] / ".decoders", 300.0))
