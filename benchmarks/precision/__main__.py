"""The command line of `benchmarks.precision.measure`."""

import typer

from benchmarks.precision.measure import main

if __name__ == "__main__":
    typer.run(main)
