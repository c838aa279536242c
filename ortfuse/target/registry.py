"""What the target runtime can execute: the kernels of the installed ONNX Runtime, or of a stored table."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ortfuse.errors import TargetError
from ortfuse.ir.facts import Facts
from ortfuse.target.costs import CostTable
from ortfuse.target.limits import LIMITS

CPU = "CPUExecutionProvider"

_TYPE_STRINGS = {
    ir.DataType.FLOAT: "tensor(float)",
    ir.DataType.FLOAT16: "tensor(float16)",
    ir.DataType.BFLOAT16: "tensor(bfloat16)",
    ir.DataType.DOUBLE: "tensor(double)",
    ir.DataType.BOOL: "tensor(bool)",
    ir.DataType.STRING: "tensor(string)",
    **{ir.DataType[name]: f"tensor({name.lower()})" for name in
       ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "INT4", "UINT4")},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Support:
    """Whether the target executes an operator; falsy with the reason as its text when it does not."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.reason


YES = Support(True)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: the versions it is for, and the element types it takes by type parameter of the schema."""

    first: int
    last: int
    types: Mapping[str, frozenset[str]]


Types = Sequence[ir.DataType | None]
"""Element types by position; `None` for an input or output that is absent or of unknown type."""

KernelTable = Mapping[tuple[str, str], Sequence[Kernel]]
"""(domain, operator) -> kernels of one provider."""


@functools.cache
def installed_kernels(provider: str) -> KernelTable:
    """The kernels of the installed runtime for `provider`."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    table: dict[tuple[str, str], list[Kernel]] = defaultdict(list)
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == provider:
            first, last = kernel.version_range
            types = {name: frozenset(allowed) for name, allowed in kernel.type_constraints.items()}
            table[kernel.domain, kernel.op_name].append(Kernel(first, last, types))
    if not table:
        raise TargetError(f"the installed ONNX Runtime has no kernels for {provider}; name one of its providers")
    return dict(table)


@functools.cache
def newest_opset() -> int:
    """The newest ai.onnx opset that both the installed onnx and ONNX Runtime know."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    known = max(int(schema.since_version) for schema in state.get_all_operator_schema() if schema.domain == "")
    return min(int(onnx.defs.onnx_opset_version()), known)


@functools.cache
def _parameters(domain: str, op_type: str, opset: int) -> tuple[list[str], list[str]] | None:
    """The type parameter (or fixed type) of each input and output of the operator, the last one repeating."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    best = None
    for schema in _schemas_of(state).get((domain, op_type), ()):
        if schema.since_version <= opset and (best is None or schema.since_version > best.since_version):
            best = schema
    if best is None:
        return None
    return [item.typeStr for item in best.inputs], [item.typeStr for item in best.outputs]


@functools.cache
def _schemas_of(state: Any) -> Mapping[tuple[str, str], Sequence[Any]]:
    schemas: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for schema in state.get_all_operator_schema():
        schemas[schema.domain, schema.name].append(schema)
    return schemas


class Target:
    """A runtime build and provider, and the highest ai.onnx opset that a result may use."""

    def __init__(
        self,
        provider: str = CPU,
        *,
        max_opset: int | None = None,
        kernels: KernelTable | None = None,
        costs: CostTable | None = None,
    ) -> None:
        """`kernels`: a stored table of another build; by default the installed runtime is asked.

        `costs`: measured speedups of rules; by default none, and every legal rule is taken for profitable.
        """
        self.provider = provider
        self.max_opset = newest_opset() if max_opset is None else min(max_opset, newest_opset())
        self._given = kernels
        self.costs = CostTable({}) if costs is None else costs
        self._answers: dict[tuple[object, ...], Support] = {}

    @property
    def kernels(self) -> KernelTable:
        """The kernels of the provider."""
        return self._given if self._given is not None else installed_kernels(self.provider)

    def supports(self, domain: str, op_type: str, opset: int, inputs: Types, outputs: Types = ()) -> Support:
        """Whether a kernel takes these element types (`None`: absent or unknown) at this version of the domain."""
        key = (domain, op_type, opset, tuple(inputs), tuple(outputs))
        if key not in self._answers:
            self._answers[key] = self._look_up(domain, op_type, opset, inputs, outputs)
        return self._answers[key]

    def check_node(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> Support:
        """Whether the target executes `node`, and at an opset that the result may use."""
        version = node.version if node.version is not None else opset_imports.get(node.domain, 1)
        if not node.domain and version > self.max_opset:
            return Support(False, f"{node.op_type} needs opset {version}, and at most {self.max_opset} is allowed")
        inputs = [facts.dtype(value) for value in node.inputs]
        outputs = [facts.dtype(value) for value in node.outputs]
        support = self.supports(node.domain, node.op_type, version, inputs, outputs)
        limit = LIMITS.get((node.domain, node.op_type))
        reason = limit(node, facts) if support and limit is not None else None
        return support if reason is None else Support(False, reason)

    def _look_up(self, domain: str, op_type: str, opset: int, inputs: Types, outputs: Types) -> Support:
        label = f"{domain + '.' if domain else ''}{op_type}"
        kernels = self.kernels.get((domain, op_type))
        if not kernels:
            return Support(False, f"{self.provider} has no kernel for {label}")
        at_version = [kernel for kernel in kernels if kernel.first <= opset <= kernel.last]
        if not at_version:
            return Support(False, f"{self.provider} has no kernel for {label} at version {opset}")
        wanted = list(self._named_types(domain, op_type, opset, inputs, outputs))
        if any(all(kind in kernel.types.get(name, {kind}) for name, kind in wanted) for kernel in at_version):
            return YES
        types = ", ".join(dict.fromkeys(kind for _, kind in wanted))
        return Support(False, f"{self.provider} has no kernel for {label} on {types} at version {opset}")

    def _named_types(
        self, domain: str, op_type: str, opset: int, inputs: Types, outputs: Types
    ) -> Iterable[tuple[str, str]]:
        parameters = _parameters(domain, op_type, opset)
        if parameters is None:
            return
        for names, types in zip(parameters, (inputs, outputs), strict=True):
            for index, dtype in enumerate(types):
                if dtype is not None and names:
                    yield names[min(index, len(names) - 1)], _TYPE_STRINGS.get(dtype, f"tensor({dtype.name.lower()})")

    def to_table(self, path: str | Path) -> None:
        """Write the kernels as a JSON table that `from_table` reads."""
        rows = [
            {"domain": domain, "op": op_type, "first": kernel.first, "last": kernel.last,
             "types": {name: sorted(allowed) for name, allowed in kernel.types.items()}}
            for (domain, op_type), kernels in sorted(self.kernels.items()) for kernel in kernels
        ]  # fmt: skip
        content = {"provider": self.provider, "max_opset": self.max_opset, "kernels": rows}
        Path(path).write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def from_table(cls, path: str | Path) -> Target:
        """A target stored by `to_table`."""
        try:
            content = json.loads(Path(path).read_text())
            table: dict[tuple[str, str], list[Kernel]] = defaultdict(list)
            for row in content["kernels"]:
                types = {name: frozenset(allowed) for name, allowed in row["types"].items()}
                table[row["domain"], row["op"]].append(Kernel(row["first"], row["last"], types))
            return cls(content["provider"], max_opset=content["max_opset"], kernels=dict(table))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TargetError(f"{path} is no kernel table: {error}; write one with Target.to_table") from error
