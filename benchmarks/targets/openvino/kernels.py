"""The kernel table of OpenVINO's provider, found by trying single operators (`benchmarks.targets.kernel_trials`).

    python -m benchmarks.targets.openvino.kernels                      # prints what became of each operator; 40 minutes
    python -m benchmarks.targets.openvino.kernels Relu Softmax         # these operators
    python -m benchmarks.targets.openvino.kernels --write              # the same as the first; writes the table of the target
    python -m benchmarks.targets.openvino.kernels --trials FILE --write # continues from a file of trials, and keeps them there

The provider tells no list of its kernels. A type counts as taken if the provider executes a use of it with the results of the
default target; wrong results of other uses are constraints (`ortfuse.targets.openvino.constraints`). For an opset at which no use
could be tried, the types of the next one count.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.targets.kernel_trials import Trial, trials
from ortfuse.targets import default_spec
from ortfuse.targets.kernel_table import Kernel, KernelTable, Operator, Schema
from ortfuse.targets.kernel_table_cache import installed_table
from ortfuse.targets.openvino import TARGET

PACKAGE = "onnxruntime-ep-openvino"
_TAKEN, _WRONG = frozenset({"equal"}), frozenset({"differs", "crashes"})
_OF_SEQUENCES = frozenset({("", "Loop"), ("", "If")})
"""Operators whose uses at newer opsets are of sequences, which the provider does not take: these say nothing of tensors."""

_WITH_BODIES = frozenset({("", "Loop"), ("", "If"), ("", "Scan")})
"""Operators that take whatever the operators in their bodies take."""

_UNSIGNED = frozenset({"tensor(uint32)", "tensor(uint64)"})
_NOT_EXCHANGED = ("string", "float8", "int4", "uint4", "float4", "complex", "seq(", "optional(", "int2")
"""Types that the provider takes in no operator, or that trials say nothing of."""


def table_of(rows: Iterable[Trial], base: KernelTable, runtime: str) -> KernelTable:
    """Return the kernel table of the provider.

    Args:
        rows: The trials.
        base: The table of the default target, whose operators are those of the runtime.
        runtime: The build.
    """
    of_operator = defaultdict(list)
    for row in rows:
        of_operator[row.operator].append(row)
    operators = {
        name: replace(operator, kernels=tuple(_kernels(operator, of_operator.get(name, []))))
        for name, operator in base.operators.items()
    }
    return replace(base, runtime=runtime, provider=TARGET.provider, operators=operators)


def _kernels(operator: Operator, rows: Sequence[Trial]) -> Iterable[Kernel]:
    """The kernels of an operator, one for each version of its definition."""
    by_version: defaultdict[int, list[Trial]] = defaultdict(list)
    for row in rows:
        schema = operator.at(row.version)
        if schema is not None and (row.operator not in _OF_SEQUENCES or row.outcome in _TAKEN):
            by_version[schema.since].append(row)
    for schema in operator.schemas:
        tried = by_version.get(schema.since) or _nearest(by_version, schema.since)
        types = None if schema.deprecated or tried is None else _types(schema, tried)
        if types is not None:
            yield Kernel(schema.since, schema.since, types)


def _nearest(by_version: Mapping[int, list[Trial]], since: int) -> list[Trial] | None:
    """The trials at the next version that was tried; at the last one before, if there is none."""
    later = [one for one in by_version if one > since]
    found = min(later, default=max(by_version, default=None))
    return None if found is None else by_version[found]


def _types(schema: Schema, rows: Sequence[Trial]) -> dict[str, frozenset[str]] | None:
    """The types that are taken, by type variable; `None` if no use is executed."""
    if not any(row.outcome in _TAKEN for row in rows):
        return None
    found: dict[str, frozenset[str]] = {}
    for name, allowed in schema.types.items():
        outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in rows:
            for kind in _types_of(row, name, schema):
                outcomes[kind][row.outcome] += 1
        right = {kind for kind, counted in outcomes.items() if _is_taken(kind, counted)}
        known = frozenset(kind for kind in allowed if not any(part in kind for part in _NOT_EXCHANGED))
        is_of_bodies = name == "V" and rows[0].operator in _WITH_BODIES
        found[name] = known if is_of_bodies else frozenset(right) & allowed or known
    return found


def _is_taken(kind: str, counted: Counter[str]) -> bool:
    """Whether the provider computes a use of a type rightly; all uses of unsigned types, in which large numbers differ."""
    taken, wrong = (sum(counted[one] for one in outcomes) for outcomes in (_TAKEN, _WRONG))
    return taken > 0 and not (wrong and kind in _UNSIGNED)


def _types_of(row: Trial, name: str, schema: Schema) -> list[str]:
    """The types that a trial has for a type variable: of an input or, if that is of results alone, of an attribute."""
    of_inputs = [kind for variable, kind in row.types if variable == name]
    if of_inputs or any(formal.type == name for formal in schema.inputs):
        return of_inputs
    return [kind for variable, kind in row.types if variable.startswith(".") and variable != ".stash_type"]


def _stored(file: Path | None) -> list[Trial]:
    if file is None or not file.is_file():
        return []
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [_trial(line) for line in lines]


def _trial(line: Mapping[str, Any]) -> Trial:
    operator, types = tuple(line["operator"]), tuple((name, kind) for name, kind in line["types"])
    return Trial(**{**line, "operator": operator, "types": types})


def _collected(names: Sequence[str] | None, file: Path | None) -> list[Trial]:
    """The stored trials, and those of operators without stored ones."""
    found = _stored(file)
    known = {".".join(filter(None, row.operator)) for row in found}
    for row in trials(TARGET, names, but=known):
        found.append(row)
        if file is not None:
            with file.open("a") as lines:
                lines.write(json.dumps(asdict(row)) + "\n")
    return found


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Operators; by default all.")] = None,
    file: Annotated[Path | None, typer.Option("--trials", help="A file of trials to continue, one a line.")] = None,
    write: Annotated[bool, typer.Option(help="Whether to write the table of the target.")] = False,
) -> None:
    """Try operators on OpenVINO's provider, print what became of them, and write the kernel table."""
    rows = _collected(names, file)
    counted: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        counted[".".join(filter(None, row.operator))][row.outcome] += 1
    for name, outcomes in sorted(counted.items()):
        print(name, dict(outcomes))
    if write and not names:
        base = installed_table(default_spec().provider)
        table = table_of(rows, base, f"{base.runtime} with {PACKAGE} {version(PACKAGE)}")
        assert TARGET.folder is not None
        place = TARGET.folder / "kernels.json"
        table.write(place)
        (TARGET.folder / "kernels.json.gz").write_bytes(gzip.compress(place.read_bytes(), 9, mtime=0))
        place.unlink()


if __name__ == "__main__":
    typer.run(main)
