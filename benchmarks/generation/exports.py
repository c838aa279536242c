"""Exports decoders with caches: ``python -m benchmarks.generation.exports [--full] [NAME ...]``; in full, those of real size."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from benchmarks.exports.each import command

HERE = Path(__file__).parents[1]

if __name__ == "__main__":
    is_full = "--full" in sys.argv
    if is_full:
        sys.argv.remove("--full")
    module = f"benchmarks.generation.{'full_cases' if is_full else 'cases'}"
    typer.run(command(module, HERE / (".decoders_full" if is_full else ".decoders"), 600.0))
