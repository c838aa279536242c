"""The kernels of the CUDA provider, asked of its builds; no GPU, driver or library of CUDA is needed.

    python -m benchmarks.targets.cuda.kernels                   # compare the installed build with the stored table
    python -m benchmarks.targets.cuda.kernels --all --write     # all releases
    python -m benchmarks.targets.cuda.kernels 1.30.0 --write    # one release; the tables of others stay as they are

Each wheel of `onnxruntime-gpu` is installed in a folder of its own. Stubs stand for the libraries that the provider needs
(`benchmarks.targets.cuda.stub_libraries`), as it registers its kernels without calling them. The tables are written to the folder
of the target cuda.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.targets.cuda.stub_libraries import make
from ortfuse.targets import release_kernel_tables
from ortfuse.targets.cuda import TARGET
from ortfuse.targets.kernel_table import KernelTable

RELEASES = (
    *("1.17.1", "1.18.1", "1.19.2", "1.20.2", "1.21.1", "1.22.0", "1.23.2", "1.24.4", "1.25.1", "1.26.0"),
    *("1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.1"),
)
"""The last version of each release that has a wheel."""

_PROGRAM = """
import sys
from ortfuse.targets.kernel_table import KernelTable
KernelTable.of_runtime(sys.argv[1]).write(sys.argv[2])
"""


def installed_site() -> Path | None:
    """The folder that holds the installed build; `None` if there is none with the CUDA provider."""
    spec = importlib.util.find_spec("onnxruntime")
    package = None if spec is None or spec.origin is None else Path(spec.origin).parent
    return None if package is None or not [*package.glob("capi/*providers_cuda*")] else package.parent


def installed_table() -> KernelTable:
    """Return the kernel table of the installed build.

    Raises:
        SystemExit: The installed build has no CUDA provider.
    """
    site = installed_site()
    if site is None:
        raise SystemExit("the installed onnxruntime has no CUDA provider: name versions of onnxruntime-gpu")
    return table(site)


def table(site: Path) -> KernelTable:
    """Return the kernel table of the build in a folder, which this Python reads in a process with stub libraries."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make(sorted(site.glob("onnxruntime/capi/libonnxruntime_providers_[ct]*.so")), folder / "stubs")
        subprocess.run(
            [sys.executable, "-c", _PROGRAM, TARGET.provider, str(folder / "table.json")],
            check=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(site), str(Path(__file__).parents[3])]),
                "LD_LIBRARY_PATH": str(folder / "stubs"),
            },
        )
        return KernelTable.of_file(folder / "table.json")


def table_of_release(version: str) -> KernelTable:
    """Return the kernel table of a version of onnxruntime-gpu, which is installed in a folder for the purpose."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-qqq",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-compile",
        ]
        subprocess.run([*command, "--target", scratch, f"onnxruntime-gpu=={version}"], check=True)
        if version.startswith(("1.17", "1.18")):
            subprocess.run([*command, "--target", scratch, "numpy<2"], check=True)
        found = table(Path(scratch))
        shutil.rmtree(Path(scratch) / "onnxruntime")
        return found


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Versions; by default the installed one.")] = None,
    write: Annotated[bool, typer.Option(help="Whether to store the tables.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Whether to ask one version of each release.")] = False,
) -> None:
    """Print how the kernels of builds differ from those stored; the exit code is 1 if they do and are not to be stored."""
    assert TARGET.folder is not None
    known = release_kernel_tables.releases_of(TARGET)
    tables = {} if known is None else {name: known.table(name) for name in known.names}
    versions = [*RELEASES] if every else names
    differ = False
    for version in versions or [""]:
        try:
            found = table_of_release(version) if version else installed_table()
        except subprocess.CalledProcessError as error:
            print(f"{version}: no table: {error}", flush=True)
            differ = True
            continue
        release = ".".join(map(str, found.release))
        stored = tables.get(release)
        changed = sorted(
            key
            for key in {*found.operators, *(stored.operators if stored else ())}
            if stored is None or found.operators.get(key) != stored.operators.get(key)
        )
        kernels = sum(bool(operator.kernels) for operator in found.operators.values())
        print(
            f"{found.runtime}: {kernels} operators with kernels, {len(changed)} differ from the stored table",
            flush=True,
        )
        differ = differ or bool(changed)
        tables[release] = found
        if write:
            release_kernel_tables.write_releases(TARGET.folder / "releases.json.gz", tables)
    raise typer.Exit(int(differ and not write))


if __name__ == "__main__":
    typer.run(main)
