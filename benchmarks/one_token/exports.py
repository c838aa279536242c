"""Export the models of which one token is read: ``python -m benchmarks.one_token.exports [--folder FOLDER] [NAME ...]``."""

from __future__ import annotations

from pathlib import Path

import typer

from benchmarks.exports.each import command

FOLDER = Path(__file__).parents[1] / ".one_token"
CASES = "benchmarks.exports.one_token_cases"

if __name__ == "__main__":
    typer.run(command(CASES, FOLDER, 600.0))
