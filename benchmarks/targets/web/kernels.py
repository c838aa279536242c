"""The kernels of a target in Node.js, found by loading a model of one node for each operator, version and types.

    python -m benchmarks.targets.web.kernels wasm --write
    python -m benchmarks.targets.web.kernels webgpu --write

The packages give no list of their kernels. The operators are those of the same release of ONNX Runtime for the CPU. A node
that the runtime places on the provider has a kernel; one that it inlines has none. It gives up some models before it looks for
kernels (`unclear` in what is printed): on WebAssembly, which has the kernels of the CPU, they count as had, otherwise as missing.
`ORTFUSE_NODE_MODULES` names the folder of another release, whose table is then stored beside the others.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

from benchmarks.targets.web import single_nodes
from ortfuse.runtime.node_sessions import NodeError, find_package
from ortfuse.runtime.node_sessions.node_process import Node
from ortfuse.targets import default_spec, spec_of
from ortfuse.targets.kernel_table import Kernel, KernelTable, Operator, Schema
from ortfuse.targets.release_kernel_tables import releases_of, table_of_release, write_releases
from ortfuse.targets.target_spec import release_number
from ortfuse.targets.webgpu.runner import environment

PACKAGES = {
    "wasm": ("onnxruntime-web", "wasm", "CPUExecutionProvider"),
    "webgpu": ("onnxruntime-node", "webgpu", "WebGpuExecutionProvider"),
}
"""The npm package of a target, its provider in JavaScript, and in the runtime's log."""

_PLACED = re.compile(r"(?:placed on|node\(s\) on) \[(\w+)\]")
_LACKING = re.compile(
    r"Could not find an implementation|Failed to find kernel|NOT_IMPLEMENTED"
    r"|is not a registered function/op|No Op registered|No opset import"
)
_NUMBERS = re.compile(r"tensor\(\w+\)|\(node:.*|'Inserted\w+'")
_RENEWED = 2000
"""Sessions after which Node.js is started anew: its log grows."""


@dataclass
class Prober:
    """Loads models in a process of Node.js, and tells where their nodes are placed."""

    target: str
    environment: dict[str, str]

    def __post_init__(self) -> None:
        self._package, self._provider, self._name = PACKAGES[self.target]
        self._count, self._node = 0, self._started()

    @property
    def version(self) -> str:
        """The version of the package."""
        return str(json.loads((find_package(self._package) / "package.json").read_text())["version"])

    def _started(self) -> Node:
        return Node(find_package(self._package), 1, self.environment)

    def outcome(self, model: bytes, bodies: bool = False) -> str:
        """Whether the nodes of a model are on the provider: `kernel`, `none`, or the error by which that is unclear.

        Args:
            model: The serialised model.
            bodies: Whether its node has bodies with nodes.
        """
        self._count += 1
        if self._count % _RENEWED == 0 or not self._node.alive:
            self._node.end()
            self._node = self._started()
        options = {
            "executionProviders": [self._provider],
            "graphOptimizationLevel": "disabled",
            "logSeverityLevel": 0,
            "logVerbosityLevel": 0,
        }
        start = self._node.log_size()
        try:
            self._node.ask("loads", {"action": "open", "id": 1, "options": options, "external": []}, [model])
            self._node.ask("closes", {"action": "close", "id": 1})
        except NodeError as error:
            said = self._node.log(start) + str(error)
            if _LACKING.search(str(error)):
                return "none"
            return "kernel" if self._is_placed(said, bodies) else str(error)
        return "kernel" if self._is_placed(self._node.log(start), bodies) else "none"

    def _is_placed(self, log: str, bodies: bool) -> bool:
        found, plain = _PLACED.findall(log), log.replace("\x1b[m", "")
        if bodies:
            return found[-1:] == [self._name]
        return found == [self._name] and "Number of nodes: 1\n" in plain

    def highest(self, newest: int, model: Callable[[int], bytes]) -> int:
        """The highest number for which a model loads."""
        return next(number for number in range(newest, 0, -1) if self.outcome(model(number)) == "kernel")


@dataclass
class Operators:
    """Finds the kernels of operators.

    Attributes:
        prober: Loads models.
        table: The operators of the same release for the CPU.
        from_table: Whether the kernels of that table are those of the target, unless trying shows that one is missing.
        unclear: How often it is unclear whether there is a kernel, with the cause.
    """

    prober: Prober
    table: KernelTable
    from_table: bool
    unclear: Counter[str] = field(default_factory=Counter)
    attributes: dict[Any, Any] = field(default_factory=single_nodes.attributes)

    def kernels(self, key: tuple[str, str], operator: Operator) -> list[Kernel]:
        """The kernels of an operator."""
        result = []
        for index, schema in enumerate(operator.schemas):
            if schema.deprecated or (not key[0] and schema.since > self.table.max_opset):
                continue
            own = single_nodes.serving(operator, schema) if self.from_table else None
            if own == []:
                continue
            following = [later.since - 1 for later in operator.schemas[index + 1 :]]
            opset = self.table.max_opset if key[0] else min([self.table.max_opset, *following])
            names, outcomes = self._tried(key, schema, own, opset)
            placed = [types for types, what in outcomes if what == "kernel"]
            if own is not None:
                # The product of types has combinations of which no kernel takes any, and others that cannot be tried.
                result += own if placed or all(what != "none" for _, what in outcomes) else []
            elif outcomes:
                result += single_nodes.kernels(schema.since, names, placed)
        return [kernel for index, kernel in enumerate(result) if kernel not in result[:index]]

    def _tried(
        self, key: tuple[str, str], schema: Schema, own: list[Kernel] | None, opset: int
    ) -> tuple[list[str], list[tuple[single_nodes.Types, str]]]:
        """The type constraints, and each combination of types that was tried with what came of it."""
        names, every = single_nodes.combinations(schema, own)
        if single_nodes.count(names) <= single_nodes.MOST:
            return list(names), [(types, self._outcome(key, schema, types, opset)) for types in every]
        tried: list[tuple[single_nodes.Types, str]] = []
        for types in itertools.islice(every, single_nodes.MOST // 5):
            tried.append((types, self._outcome(key, schema, types, opset)))
            if tried[-1][1] == "kernel":
                break
        else:
            return list(names), tried
        taken = {
            name: [one for one in kinds if self._outcome(key, schema, {**types, name: one}, opset) == "kernel"]
            for name, kinds in names.items()
        }
        product = itertools.product(*taken.values())
        return list(names), [(dict(zip(names, one, strict=True)), "kernel") for one in product]

    def _outcome(self, key: tuple[str, str], schema: Schema, types: single_nodes.Types, opset: int) -> str:
        domain, name = key
        try:
            known = self.attributes.get((domain, name, schema.since), [])
            made = single_nodes.model(domain, name, schema, types, known, opset, self.table.max_ir_version)
        except (ValueError, KeyError, TypeError) as error:
            what = repr(error)
        else:
            what = self.prober.outcome(made, name in single_nodes.BODIES)
        if what not in ("kernel", "none"):
            self.unclear[f"{'.'.join(key)} {schema.since}: {_NUMBERS.sub('', what)[:160]}"] += 1
        return what


def main(
    target: str,
    write: Annotated[bool, typer.Option("--write", help="Write the table to the folder of the target.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Operators to try.")] = None,
) -> None:
    """Find the kernels of a target with the package that is installed."""
    spec = spec_of(target)
    prober = Prober(target, environment() if target == "webgpu" else {})
    releases, own = releases_of(default_spec()), releases_of(spec)
    assert releases is not None
    release = prober.version.rpartition(".")[0]
    nearest = max((one for one in releases.names if release_number(one) <= release_number(release)), key=release_number)
    reference = _as_far_as_it_loads(prober, table_of_release(default_spec(), nearest))
    finder, operators = Operators(prober, reference, target == "wasm"), dict[tuple[str, str], Operator]()
    for key, operator in sorted(reference.operators.items()):
        if key[0] not in ("", "com.microsoft", "ai.onnx.ml") or (only and key[1] not in only):
            continue
        kernels = tuple(finder.kernels(key, operator))
        operators[key] = replace(operator, kernels=kernels)
        if only or (finder.from_table and len(kernels) < len(operator.kernels)):
            print(f"{'.'.join(key)}: {len(kernels)} kernels, the CPU has {len(operator.kernels)}", flush=True)
    for what, count in finder.unclear.most_common():
        print(f"unclear {count:4} {what}")
    runtime = f"{PACKAGES[target][0]} {prober.version}"
    table = KernelTable(runtime, spec.provider, reference.max_opset, reference.max_ir_version, operators)
    print(f"{runtime}: opset {table.max_opset}, {sum(1 for one in operators.values() if one.kernels)} operators")
    if not finder.from_table:
        table = up_to_last_kernels(table)
    if write:
        assert spec.folder is not None
        tables = {} if own is None else {name: own.table(name) for name in own.names}
        write_releases(spec.folder / "releases.json.gz", {**tables, release: table})


def up_to_last_kernels(table: KernelTable) -> KernelTable:
    """A table up to the opset at which the most operators have kernels, the highest of them.

    A provider that was written for older opsets has kernels of Cos up to version 21, say: results of later opsets would run Cos
    elsewhere. Operators that came later count as missing, so that rules lower them to those of ONNX Runtime.
    """

    def served(opset: int) -> int:
        own = [(operator, operator.at(opset)) for (domain, _), operator in table.operators.items() if not domain]
        return sum(schema is not None and bool(single_nodes.serving(operator, schema)) for operator, schema in own)

    opset = max(range(7, table.max_opset + 1), key=lambda number: (served(number), number))
    operators = {
        key: operator
        if key[0]
        else replace(operator, kernels=tuple(kernel for kernel in operator.kernels if kernel.first <= opset))
        for key, operator in table.operators.items()
    }
    return replace(table, max_opset=opset, operators=operators)


def _as_far_as_it_loads(prober: Prober, table: KernelTable) -> KernelTable:
    """A table with the highest opset and IR version that a package loads."""
    identity = next(one for one in table.operators["", "Identity"].schemas if one.since == 13)
    of = functools.partial(single_nodes.model, "", "Identity", identity, {"T": "tensor(float)"}, [])
    return replace(
        table,
        max_opset=prober.highest(table.max_opset, lambda number: of(number, 8)),
        max_ir_version=prober.highest(table.max_ir_version, lambda number: of(13, number)),
    )


if __name__ == "__main__":
    typer.run(main)
