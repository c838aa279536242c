"""The command line of `benchmarks.coverage.measure`."""

import typer

from benchmarks.coverage.measure import main

if __name__ == "__main__":
    typer.run(main)
