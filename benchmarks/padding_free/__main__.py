"""The command line of `benchmarks.padding_free.measure`."""

import typer

from benchmarks.padding_free.measure import main

if __name__ == "__main__":
    typer.run(main)
