"""The command line of `benchmarks.tuner.measure`."""

import typer

from benchmarks.tuner.measure import main

if __name__ == "__main__":
    typer.run(main)
