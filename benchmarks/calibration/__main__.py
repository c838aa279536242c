"""The command line of `benchmarks.calibration.measure`."""

import typer

from benchmarks.calibration.measure import main

if __name__ == "__main__":
    typer.run(main)
