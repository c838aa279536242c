"""The command line of `benchmarks.weights.measure`."""

import typer

from benchmarks.weights.measure import main

if __name__ == "__main__":
    typer.run(main)
