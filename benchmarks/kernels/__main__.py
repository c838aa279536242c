"""The command line of `benchmarks.kernels.measure`."""

import typer

from benchmarks.kernels.measure import main

if __name__ == "__main__":
    typer.run(main)
