"""The command line of `benchmarks.rules.command`."""

import typer

from benchmarks.rules.command import main

if __name__ == "__main__":
    typer.run(main)
