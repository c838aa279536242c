"""Stub libraries of CUDA and TensorRT, with which their providers load on a machine that lacks them or a driver.

A provider's library is loaded to ask it for its kernels, which it registers without calling the device. Each stub has the
functions that the library imports, and each function reports success and does nothing.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

_PREFIXES = ("libcu", "libnv")
"""How the names of the libraries begin that are made."""

_UNVERSIONED = {
    "cudnn": "libcudnn.so",
    "cufft": "libcufft.so",
    "curand": "libcurand.so",
    "cublasLt": "libcublasLt.so",
    "cublas": "libcublas.so",
    "cuda": "libcudart.so",
    "cu": "libcuda.so",
    "createNvOnnx": "libnvonnxparser.so",
    "createInfer": "libnvinfer.so",
    "getInfer": "libnvinfer.so",
    "getPlugin": "libnvinfer.so",
    "initLibNvInferPlugins": "libnvinfer_plugin.so",
}
"""The library of functions that are imported without its name, by how their names begin."""

_BODIES = {"cudaGetDeviceCount": "int cudaGetDeviceCount(int *count) { *count = 1; return 0; }"}
"""Functions that must answer something."""


def _listed(library: Path, option: str) -> list[list[str]]:
    """Return the words of each line that `readelf` prints of a shared library."""
    command = ["readelf", "-W", option, str(library)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line.split() for line in printed.splitlines()]


def needed(library: Path) -> list[str]:
    """Return the libraries of CUDA and TensorRT that a shared library needs."""
    names = [words[-1].strip("[]") for words in _listed(library, "-d") if "(NEEDED)" in words]
    return [name for name in names if name.startswith(_PREFIXES)]


def imported(library: Path) -> dict[str, tuple[set[str], set[str]]]:
    """Return the functions that a shared library imports from each library: with a version, and without one."""
    homes = needed(library)
    found = defaultdict[str, tuple[set[str], set[str]]](lambda: (set(), set()))
    for words in _listed(library, "--dyn-syms"):
        if len(words) < 8 or words[6] != "UND":
            continue
        name, _, home = words[7].partition("@")
        if home.strip("@").startswith(_PREFIXES):
            found[home.strip("@")][0].add(name)
            continue
        stem = next((stem for start, stem in _UNVERSIONED.items() if name.startswith(start)), None)
        for home in homes:
            if stem is not None and home.startswith(stem):
                found[home][1].add(name)
    return found


def make(libraries: Sequence[Path], folder: Path) -> None:
    """Compile stubs of all libraries of CUDA and TensorRT that shared libraries need into a folder, by gcc."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in {name for library in libraries for name in needed(library)}:
        versioned, plain = set[str](), set[str]()
        for library in libraries:
            found = imported(library).get(name, (set(), set()))
            versioned |= found[0]
            plain |= found[1]
        source, versions = folder / f"{name}.c", folder / f"{name}.map"
        functions = sorted(versioned | plain)
        source.write_text(
            "\n".join(_BODIES.get(each, f"long {each}(void) {{ return 0; }}") for each in functions) + "\n"
        )
        versions.write_text(f"{name} {{ global: {''.join(f'{each}; ' for each in sorted(versioned))} }};\n")
        script = [f"-Wl,--version-script={versions}"] if versioned else []
        flags = ["-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", *script]
        subprocess.run(["gcc", *flags, "-o", str(folder / name), str(source)], check=True)
