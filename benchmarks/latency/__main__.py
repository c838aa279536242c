"""The command line of `benchmarks.latency.measure`."""

import typer

from benchmarks.latency.measure import main

if __name__ == "__main__":
    typer.run(main)
