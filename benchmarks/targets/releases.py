"""The kernels of each release of ONNX Runtime, asked of its wheel.

    python -m benchmarks.targets.releases               # all releases; those that are installed below --folder are kept
    python -m benchmarks.targets.releases 1.20.1        # one release; the tables of others stay as they are

Each wheel is installed in an environment of its own, and asked for its operators, kernels, opset and IR version by this
version of ortfuse. The tables are written to the folder of the target cpu.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Annotated

import typer

from ortfuse.targets import release_kernel_tables
from ortfuse.targets.cpu import TARGET
from ortfuse.targets.kernel_table import KernelTable

RELEASES = (
    *("1.17.3", "1.18.1", "1.19.2", "1.20.1", "1.21.1", "1.22.1", "1.23.2", "1.24.4", "1.25.1", "1.26.0"),
    *("1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.1", "1.32.0"),
)
"""The last version of each release that has a wheel for the Python of this process."""

_OLD_NUMPY = ("1.17", "1.18")
"""Releases built before NumPy 2."""

_PROGRAM = """
import sys
from ortfuse.targets.kernel_table import KernelTable
KernelTable.of_runtime(sys.argv[1]).write(sys.argv[2])
"""


def environment(release: str, folder: Path) -> Path:
    """Install a release in an environment of its own, unless it is there; returns the folder of its packages."""
    place = folder / release
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        numpy = ["numpy<2"] if release.startswith(_OLD_NUMPY) else []
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"onnxruntime=={release}", *numpy],
            check=True,
        )
    return next(place.glob("lib/python*/site-packages"))


def table(release: str, folder: Path) -> KernelTable:
    """Return the kernel table of a release, which this Python reads in a process with that release first on its path."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "table.json"
        places = [str(environment(release, folder)), str(Path(__file__).parents[2])]
        subprocess.run(
            [sys.executable, "-c", _PROGRAM, TARGET.provider, str(file)],
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        )
        return KernelTable.of_file(file)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Versions; by default one of each release.")] = None,
    folder: Annotated[Path, typer.Option(help="Where environments are made and kept.")] = Path(".environments"),
) -> None:
    """Write the kernel tables of releases."""
    assert TARGET.folder is not None
    known = release_kernel_tables.releases_of(TARGET)
    tables = {} if known is None else {name: known.table(name) for name in known.names}
    for version in names or RELEASES:
        tables[version.rpartition(".")[0]] = table(version, folder.resolve())
        print(f"{version}: {len(tables[version.rpartition('.')[0]].operators)} operators", flush=True)
    release_kernel_tables.write_releases(TARGET.folder / "releases.json.gz", tables)


if __name__ == "__main__":
    typer.run(main)
