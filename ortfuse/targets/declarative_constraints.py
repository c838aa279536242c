"""Class `StatedLimit`: a kernel constraint that the table of a target states as data.

A limit is an object with the `domain` and `name` of the operator and either an `input` (its position) with the `ranks` that
the kernel takes (an empty list: the input must be left out), or an `attribute` (its name) with the `values` that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal, Subject, refuse, words
from ortfuse.ir.schemas import attribute_default


@dataclass(frozen=True)
class StatedLimit:
    """A limit on one input or attribute of an operator: `allowed` are the ranks of the input, or the values of the attribute."""

    domain: str
    name: str
    subject: int | str
    allowed: tuple[Any, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StatedLimit:
        """Parse the form used in a table. Raises KeyError or TypeError if it is malformed."""
        if "input" in data:
            return cls(data["domain"], data["name"], int(data["input"]), tuple(data["ranks"]))
        return cls(data["domain"], data["name"], str(data["attribute"]), tuple(data["values"]))

    def check(self, node: ir.Node, facts: Facts) -> Refusal | None:
        """Why the kernel refuses a node of the operator, or `None` if it does not."""
        if isinstance(self.subject, int):
            value = node.inputs[self.subject] if self.subject < len(node.inputs) else None
            rank = facts.rank(value)
            if value is None or rank in self.allowed:
                return None
            needed = f"rank {words(frozenset(self.allowed))}" if self.allowed else "none"
            found = "of unknown rank" if rank is None else f"of rank {rank}"
            return refuse(
                "kernel_limit", Subject.of(value, f"input {self.subject} of {node.op_type}"), found=found, needed=needed
            )
        attribute = node.attributes.get(self.subject)
        if attribute is None:
            value = attribute_default(node.domain, node.op_type, facts.version(node), self.subject)
        else:
            value = None if attribute.is_ref() else attribute.value
        if value in self.allowed:
            return None
        return refuse(
            "kernel_limit",
            Subject("attribute", self.subject, node.op_type),
            found=value,
            needed=words(frozenset(self.allowed)),
        )
