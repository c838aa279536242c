"""Kernel tables of the releases of ONNX Runtime, so that a model can be compiled for one that is not installed.

A target's folder holds them in one file, `releases.json.gz`: an operator with the same definitions and kernels in several
releases is stored once. `python -m benchmarks.targets.releases` writes it from the wheels.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ortfuse.errors import TargetError
from ortfuse.targets.kernel_table import FORMAT, KernelTable, TypeSets, operator_of_json, operator_to_json
from ortfuse.targets.target_spec import TargetSpec, release_number

_RELEASE = re.compile(r"(\d+\.\d+)(?:\.\d+)?")


@dataclass(frozen=True)
class Releases:
    """The stored tables of a target.

    Attributes:
        stored: The content of the file.
        where: The file, for errors.
    """

    stored: Mapping[str, Any]
    where: str

    @property
    def names(self) -> list[str]:
        """The releases, such as `1.20`, the oldest first."""
        return sorted(self.stored["releases"], key=release_number)

    def table(self, release: str, only: Container[tuple[str, str]] | None = None) -> KernelTable:
        """Return the table of a release, with all operators or some, named by domain and name.

        Raises:
            TargetError: The file is malformed.
        """
        try:
            one, sets = self.stored["releases"][release], [frozenset(types) for types in self.stored["type_sets"]]
            entries = [self.stored["operators"][number] for number in one["operators"]]
            operators = {
                (entry["domain"], entry["name"]): operator_of_json(entry, sets)
                for entry in entries
                if only is None or (entry["domain"], entry["name"]) in only
            }
            return KernelTable(
                one["runtime"], self.stored["provider"], one["max_opset"], one["max_ir_version"], operators
            )
        except (KeyError, TypeError, IndexError) as error:
            raise TargetError(
                f"{self.where}: no kernel tables of releases ({type(error).__name__}: {error})"
            ) from error


@functools.cache
def releases_of(spec: TargetSpec) -> Releases | None:
    """Return the stored tables of a target; `None` if its folder has none.

    Raises:
        TargetError: The file cannot be read.
    """
    file = spec.releases_file
    if file is None:
        return None
    try:
        with gzip.open(file, "rt", encoding="utf-8") as content:
            stored = json.load(content)
    except (OSError, ValueError) as error:
        raise TargetError(f"{file}: no kernel tables of releases ({error})") from error
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise TargetError(f"{file}: no kernel tables of releases in format {FORMAT}")
    return Releases(stored, str(file))


def table_of_release(spec: TargetSpec, named: str) -> KernelTable:
    """Return the kernel table of a release that a user names, such as `1.20` or `1.20.1`.

    Raises:
        TargetError: It is no release, or the target has no table of it.
    """
    found = _RELEASE.fullmatch(named.strip())
    if found is None:
        raise TargetError(f"--runtime {named}: name a release of ONNX Runtime by its number, such as 1.20")
    releases = releases_of(spec)
    known = [] if releases is None else releases.names
    if releases is None or found[1] not in known:
        have = f"known are {known[0]} to {known[-1]}" if known else "it has no tables of releases"
        raise TargetError(
            f"--runtime {named}: no kernel table of ONNX Runtime {found[1]} for the target {spec.name} ({have}); "
            "where that release is installed, Target.to_table writes one for --target"
        )
    return _table(spec, found[1])


@functools.lru_cache(maxsize=32)
def _table(spec: TargetSpec, release: str) -> KernelTable:
    releases = releases_of(spec)
    assert releases is not None
    found = releases.table(release)
    # Several targets may share a folder, and a table stands for one of them.
    return replace(found, provider=spec.provider) if spec.kernels == "stored" else found


def newest_table(spec: TargetSpec) -> KernelTable | None:
    """Return the table of the newest release of which a target has one; `None` if it has none."""
    releases = releases_of(spec)
    return None if releases is None else _table(spec, releases.names[-1])


def write_releases(path: Path, tables: Mapping[str, KernelTable]) -> None:
    """Write the tables of releases, by their names, to one file.

    Raises:
        OSError: The file cannot be written.
    """
    sets, numbers = TypeSets(), dict[str, int]()
    operators: list[dict[str, Any]] = []
    releases: dict[str, Any] = {}
    for release in sorted(tables, key=release_number):
        table, listed = tables[release], []
        for (domain, name), operator in sorted(table.operators.items()):
            entry = operator_to_json(domain, name, operator, sets)
            key = json.dumps(entry, sort_keys=True)
            if key not in numbers:
                numbers[key] = len(operators)
                operators.append(entry)
            listed.append(numbers[key])
        releases[release] = {
            "runtime": table.runtime,
            "max_opset": table.max_opset,
            "max_ir_version": table.max_ir_version,
            "operators": listed,
        }
    providers = {table.provider for table in tables.values()}
    content = {
        "format": FORMAT,
        "provider": providers.pop(),
        "type_sets": sets.listed(),
        "operators": operators,
        "releases": releases,
    }
    data = json.dumps(content, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0))
