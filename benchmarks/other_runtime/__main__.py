"""The command line of `benchmarks.other_runtime.measure`."""

import typer

from benchmarks.other_runtime.measure import main

if __name__ == "__main__":
    typer.run(main)
