"""The command line of `benchmarks.passes.measure`."""

import typer

from benchmarks.passes.measure import main

if __name__ == "__main__":
    typer.run(main)
