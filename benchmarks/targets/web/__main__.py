"""The command line of `benchmarks.targets.web.measure`."""

import typer

from benchmarks.targets.web.measure import main

if __name__ == "__main__":
    typer.run(main)
