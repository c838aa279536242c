"""Read the kernel registry of the installed ONNX Runtime in a child process, since reading it can crash the runtime."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ortfuse.errors import TargetError
from ortfuse.io.python_subprocess import start

PROGRAM = Path(__file__).with_name("print_kernel_registry.py")
"""The program that the process executes."""

_LIMIT = 120.0
"""Seconds after which it counts as hanging."""


class RegistryError(TargetError):
    """The installed ONNX Runtime crashes or hangs when it is asked for its kernels."""


@dataclass(frozen=True)
class Definition:
    """A kernel.

    Attributes:
        provider: The execution provider that has it.
        domain: The domain of its operator.
        name: The operator.
        first: The first version of the operator that it computes.
        last: The last one.
        types: The element types that it takes, by the name of the type constraint.
    """

    provider: str
    domain: str
    name: str
    first: int
    last: int
    types: Mapping[str, tuple[str, ...]]


@functools.cache
def definitions() -> tuple[Definition, ...]:
    """All kernels of the installed ONNX Runtime, of all providers.

    Raises:
        RegistryError: The runtime crashes or hangs.
    """
    process = start([str(PROGRAM)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        written, _ = process.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise RegistryError(f"{_ASKED} hangs: no answer after {_LIMIT:.0f} s; {_ADVICE}") from None
    if process.returncode:
        raise RegistryError(f"{_ASKED} crashes ({_cause(process.returncode)}); {_ADVICE}")
    return tuple(
        Definition(provider, domain, name, first, last, {key: tuple(types) for key, types in constraints.items()})
        for provider, domain, name, (first, last), constraints in json.loads(written)
    )


_ASKED = "onnxruntime, asked for its kernels,"
_ADVICE = "a GPU build does so if the libraries of its provider are missing: install them, or the package onnxruntime for the CPU"


def _cause(code: int) -> str:
    return f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
