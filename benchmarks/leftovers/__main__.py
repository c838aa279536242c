"""The command line of `benchmarks.leftovers.measure`."""

import typer

from benchmarks.leftovers.measure import main

if __name__ == "__main__":
    typer.run(main)
