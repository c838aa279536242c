"""The command line of `benchmarks.engine.measure`."""

import typer

from benchmarks.engine.measure import main

if __name__ == "__main__":
    typer.run(main)
