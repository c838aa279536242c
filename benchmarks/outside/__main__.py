"""The command line of `benchmarks.outside.measure`."""

import typer

from benchmarks.outside.measure import main

if __name__ == "__main__":
    typer.run(main)
