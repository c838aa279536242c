"""Exports models that run in browsers, to measure on: ``python -m benchmarks.exports.web [--folder FOLDER] [NAME ...]``.

The configurations are real and the weights random, as in `benchmarks.exports.full`; together the models take about two gigabytes.
"""

from __future__ import annotations

import typer

from benchmarks.exports.each import command
from benchmarks.models import WEB

if __name__ == "__main__":
    typer.run(command("benchmarks.exports.web_cases", WEB, 900.0))
