"""One target that stands for several: an operator may be made only if each of them executes it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import TargetError
from ortfuse.ir.refusal import Refusal, Subject, refuse
from ortfuse.targets.known_bugs import Quirk
from ortfuse.targets.match_kernel_types import DType, DTypes
from ortfuse.targets.rule_speedups import CostTable, Estimate, ShapeOf
from ortfuse.targets.target import Target
from ortfuse.targets.target_spec import TargetSpec


@dataclass(frozen=True)
class JointCosts(CostTable):
    """The cost tables of several targets: the lowest of the speedups that they know counts.

    A table without a rule says nothing against it: alone, it would leave the rule to apply wherever it is legal.

    Attributes:
        tables: The tables.
    """

    tables: tuple[CostTable, ...] = ()

    def estimate(self, rule: str, shape_of: ShapeOf, dtype: str = "float32") -> Estimate | None:
        """The lowest of the speedups that the tables estimate; `None` if none of them knows the rule."""
        found = [table.estimate(rule, shape_of, dtype) for table in self.tables]
        return min((one for one in found if one is not None), key=lambda one: one.speedup, default=None)

    def remarks(self, sources: Collection[str]) -> list[str]:
        """The notes for the user of all tables."""
        return list(dict.fromkeys(remark for table in self.tables for remark in table.remarks(sources)))


class JointTarget(Target):
    """Several targets at once.

    Each question is put to all of them, and the strictest answer counts. Models run for the first one.
    """

    def __init__(self, members: Sequence[Target]) -> None:
        """`members`: two or more targets.

        Raises:
            TargetError: There are fewer.
        """
        if len(members) < 2:
            raise TargetError("a list of targets names two or more")
        self.members = tuple(members)
        first = self.members[0]
        self.spec = _joint_spec([one.spec for one in self.members])
        self.known_opset = min(one.known_opset for one in self.members)
        self.max_opset = min(one.max_opset for one in self.members)
        self.table = replace(
            first.table,
            runtime=" and ".join(f"{one.table.runtime} ({one.spec.name})" for one in self.members),
            max_opset=min(one.table.max_opset for one in self.members),
            max_ir_version=min(one.table.max_ir_version for one in self.members),
        )
        self.provider = ", ".join(dict.fromkeys(one.provider for one in self.members))
        self.costs = JointCosts({}, tables=tuple(one.costs for one in self.members))
        self._join()

    def _join(self) -> None:
        """Take the known bugs of all members, and zeros for hidden rows only if they agree on that."""
        zeroes = [Quirk.ZEROES_MASKED_ROWS in one.quirks for one in self.members]
        self._is_split = any(zeroes) and not all(zeroes)
        bugs = frozenset().union(*(one.quirks for one in self.members))
        self.quirks = bugs - {Quirk.ZEROES_MASKED_ROWS} if self._is_split else bugs

    def _of(self, members: Sequence[Target]) -> Target:
        found = copy.copy(self)
        found.members = tuple(members)
        found._join()
        return found

    def limited(self, max_opset: int) -> Target:
        """The same targets for results of at most this opset."""
        found = self._of([one.limited(min(max_opset, one.max_opset)) for one in self.members])
        found.max_opset = min(max_opset, self.max_opset)
        return found

    def without_lowering(self) -> Target:
        """The same targets for pipelines that do not lower operators which one of them lacks."""
        return self._of([one.without_lowering() for one in self.members])

    def with_documented_limits(self, domain: str, op_type: str) -> Target:
        """The same targets for who takes care of the limits that were found on the kernels of an operator."""
        return self._of([one.with_documented_limits(domain, op_type) for one in self.members])

    @property
    def lowers(self) -> bool:
        """Whether rules lower operators for one of the targets."""
        return any(one.lowers for one in self.members)

    def is_lowered(self, op_type: str) -> bool:
        """Whether rules lower an operator of ai.onnx for one of the targets."""
        return any(one.is_lowered(op_type) for one in self.members)

    def to_table(self, path: object) -> None:
        """Refuse: a table is that of one target.

        Raises:
            TargetError: Always.
        """
        raise TargetError(f"a kernel table is that of one target, not of {self.spec.name}")

    def refusal(
        self, domain: str, op_type: str, opset: int | None, inputs: DTypes, outputs: Sequence[DType] = ()
    ) -> Refusal | None:
        """Why one of the targets does not execute an operator on these types; `None` if all do."""
        answers = (one.refusal(domain, op_type, opset, inputs, outputs) for one in self.members)
        return next((answer for answer in answers if answer is not None), None)

    def check_node(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> Refusal | None:
        """Why one of the targets does not execute `node`; `None` if all do."""
        answers = (one.check_node(node, opset_imports, facts) for one in self.members)
        return next((answer for answer in answers if answer is not None), None) or self._unless_agreed(node)

    def _unless_agreed(self, node: ir.Node) -> Refusal | None:
        """Refuse an Attention with a mask where the targets compute hidden rows differently."""
        masked = node.op_type == "Attention" and len(node.inputs) > 3 and node.inputs[3] is not None
        if not self._is_split or node.domain or not masked:
            return None
        found = f"with a mask: {self.spec.name} give different results for rows that it hides"
        return refuse("signature", Subject("operator", node.op_type), found=found)

    def limit(self, node: ir.Node, facts: Facts) -> Refusal | None:
        """Why a kernel of one of the targets refuses a node that it is registered for; `None` if none does."""
        answers = (one.limit(node, facts) for one in self.members)
        return next((answer for answer in answers if answer is not None), None) or self._unless_agreed(node)

    def instead_of_kernel(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> str:
        """The way in which targets without a kernel for a node execute it; empty if one of them cannot."""
        lacking = [one for one in self.members if one.check_node(node, opset_imports, facts) is not None]
        found = [one.instead_of_kernel(node, opset_imports, facts) for one in lacking]
        return found[0] if found and all(found) else ""

    def may_have_kernel(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> bool:
        """Whether types of a node are not known here, and each target has kernels for some that they may be."""
        return all(one.may_have_kernel(node, opset_imports, facts) for one in self.members)

    def between_casts(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> bool:
        """Whether one of the targets executes a node in float32, between Casts that it inserts."""
        return any(one.between_casts(node, opset_imports, facts) for one in self.members)

    def inlines(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> bool:
        """Whether one of the targets executes a node by the definition of its operator."""
        return any(one.inlines(node, opset_imports, facts) for one in self.members)

    def lost_by_raising(self, node: ir.Node, version: int, opset: int, facts: Facts) -> Refusal | None:
        """Why one of the targets could no longer execute a node if `version` were raised to `opset`; `None` if all could."""
        answers = (one.lost_by_raising(node, version, opset, facts) for one in self.members)
        return next((answer for answer in answers if answer is not None), None)


def _joint_spec(specs: Sequence[TargetSpec]) -> TargetSpec:
    """The declaration of several targets: what holds for all of them, and how models run for the first."""
    # Models run for the first one for which any can.
    runner = next((one for one in specs if one.runs_on), specs[0])
    axes = [one.fast_transpose_axes for one in specs if one.fast_transpose_axes is not None]
    return TargetSpec(
        name=",".join(dict.fromkeys(one.name for one in specs)),
        provider=", ".join(dict.fromkeys(one.provider for one in specs)),
        known_bugs=frozenset().union(*(one.known_bugs for one in specs)),
        orders_axes_itself=any(one.orders_axes_itself for one in specs),
        splits_channels_in_place=all(one.splits_channels_in_place for one in specs),
        untried=frozenset().union(*(one.untried for one in specs)),
        half_in_float32=all(one.half_in_float32 for one in specs),
        fast_transpose_axes=min(axes, default=None),
        slow_denormals=any(one.slow_denormals for one in specs),
        plans_buffers_by_names=all(one.plans_buffers_by_names for one in specs),
        blocked_layout=next((one.blocked_layout for one in specs if one.blocked_layout is not None), None),
        runs_on=runner.runs_on,
        runner=runner.runner_file,
        session_settings=runner.session_settings,
    )
