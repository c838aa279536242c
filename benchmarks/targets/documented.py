"""The kernel table of a provider from the runtime's page of operators and types, for a target that is never run here.

    python -m benchmarks.targets.documented directml FILE.tsv --runtime 1.27

FILE has a line for each kernel, separated by tabs: domain, operator, opsets (`13+` or `[7, 12]`) and types
(`T = (float), (float16) ; T2 = (int32)`). The definitions of operators are those that the runtime's release has on the CPU.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ortfuse.targets import release_kernel_tables
from ortfuse.targets.kernel_table import OPEN_END, Kernel, KernelTable, Operator
from ortfuse.targets.registry import default_spec, spec_of


def kernels(file: Path) -> dict[tuple[str, str], tuple[Kernel, ...]]:
    """Return the kernels in a file by the domain and name of their operator."""
    found = defaultdict(list)
    for line in file.read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        domain, name, opsets, types = [*line.split("\t"), "", ""][:4]
        first, last = opset_range(opsets)
        found["" if domain == "ai.onnx" else domain, name].append(Kernel(first, last, types_of(types)))
    return {key: tuple(of_operator) for key, of_operator in found.items()}


def opset_range(text: str) -> tuple[int, int]:
    """The first and the last version of `13+`, `[7, 12]` or `13`."""
    if text.endswith("+"):
        return int(text[:-1]), OPEN_END
    numbers = [int(part) for part in text.strip("[]").split(",")]
    return numbers[0], numbers[-1]


def types_of(text: str) -> dict[str, frozenset[str]]:
    """The element types by the name of their constraint."""
    found = {}
    for part in filter(None, (one.strip() for one in text.split(";"))):
        name, _, kinds = part.partition("=")
        found[name.strip()] = frozenset(f"tensor{kind.strip()}" for kind in kinds.split(",") if kind.strip())
    return found


def table(file: Path, provider: str, release: str) -> KernelTable:
    """Return the table of a provider: the operators of a release on the CPU with the kernels of a file."""
    known = release_kernel_tables.table_of_release(default_spec(), release)
    listed = kernels(file)
    operators = {key: Operator(one.schemas, listed.get(key, ())) for key, one in known.operators.items()}
    return replace(known, provider=provider, operators=operators)


def main(
    target: Annotated[str, typer.Argument(help="Short name of the target.")],
    file: Annotated[Path, typer.Argument(help="File with the kernels.")],
    runtime: Annotated[str, typer.Option(help="The release of the runtime that the page is about.")] = "1.27",
) -> None:
    """Write the table to the folder of the target."""
    spec = spec_of(target)
    assert spec.folder is not None
    made = table(file, spec.provider, runtime)
    release_kernel_tables.write_releases(spec.folder / "releases.json.gz", {runtime: made})
    print(f"{spec.provider}: {sum(bool(one.kernels) for one in made.operators.values())} operators with kernels")


if __name__ == "__main__":
    typer.run(main)
