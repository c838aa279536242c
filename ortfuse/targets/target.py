"""Decide whether the target can execute a node, by operator, domain, version and types.

The answers replicate the runtime's own kernel lookup. An operator that the runtime would run by inlining its ONNX function
body, or in float32 between Casts that it inserts, counts as having *no* kernel. Nothing is gained by emitting the former; the
latter is worth emitting in place of at least as many that have none either (`Target.between_casts`).

Some kernels refuse shapes although their registration states no such limit; see `ortfuse.targets.kernel_constraints`.
"""

from __future__ import annotations

import copy
import functools
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import TargetError
from ortfuse.ir.refusal import Refusal, Subject, refuse
from ortfuse.ir.schemas import droppable_outputs
from ortfuse.targets.calibrated_speedups import costs_here
from ortfuse.targets.custom_operators import custom_operator, opset_of_body
from ortfuse.targets.inlined_operators import has_body, is_inlined, operators_of_body
from ortfuse.targets.kernel_constraints import BROADCASTS_FROM, DOCUMENTED, Limit, unless_alike
from ortfuse.targets.kernel_table import KernelTable, Operator, Schema
from ortfuse.targets.kernel_table_cache import table_of
from ortfuse.targets.known_bugs import LACKING, KnownBug, Quirk
from ortfuse.targets.lowered_operators import lowered_operators
from ortfuse.targets.match_kernel_types import (
    ABSENT,
    Argument,
    DType,
    DTypes,
    MismatchError,
    accepts,
    arguments,
    bind,
    by_name,
    short,
    type_string,
)
from ortfuse.targets.registry import spec_of
from ortfuse.targets.release_kernel_tables import newest_table
from ortfuse.targets.rule_speedups import CostTable
from ortfuse.targets.target_spec import TargetSpec, release_number


class Target:
    """A runtime build and provider, and the highest ai.onnx opset that a result may use.

    The opset is the lowest of three: that which the runtime loads, that of the installed onnx, and that which the user allows.

    Attributes:
        spec: The declaration of the target: all that is known of it besides its kernels.
        provider: The execution provider whose kernels run the result.
        max_opset: The highest ai.onnx opset that a result may use.
        known_opset: The highest opset that the runtime loads and the installed onnx defines, whatever the user allows.
        costs: Measured speedups of rules on the provider.
        quirks: Behaviours of the runtime that deviate from the operator definitions.
    """

    def __init__(
        self,
        provider: str | TargetSpec | None = None,
        *,
        max_opset: int | None = None,
        table: KernelTable | None = None,
        costs: CostTable | None = None,
        threads: int = 0,
    ) -> None:
        """`provider`: the short name of a target, the name of a provider, or a declaration; by default the default target.

        `table`: a stored table of another build; by default the installed runtime is asked, once per process.

        `costs`: measured speedups of rules; by default those in the table, or those that `ortfuse calibrate` measured here with
        this runtime, or with the release of the table (with `threads` per operator, if there are several; 0 is as many as the
        runtime chooses), or those shipped for the provider and the release. With an empty table every legal rule counts as
        profitable.

        Raises:
            TargetError: The installed runtime has no kernels for `provider`, or `max_opset` is not positive.
        """
        if max_opset is not None and max_opset < 1:
            raise TargetError(f"--max-opset {max_opset}: the opsets of ai.onnx are numbered from 1")
        self.spec = spec_of(provider if table is None else table.provider)
        self.table = table_of(self.spec) if table is None else table
        self.provider = self.table.provider
        self.known_opset = min(self.table.max_opset, int(onnx.defs.onnx_opset_version()))
        self.max_opset = self.known_opset if max_opset is None else min(max_opset, self.known_opset)
        own = self.table.findings
        self.costs = (
            costs or own.costs or costs_here(self.table.runtime, self.spec, threads, whole_release=table is not None)
        )
        bugs = self.spec.bugs_on(platform.machine(), self.table.release)
        self._bugs: frozenset[KnownBug] = bugs if own.quirks is None else own.quirks
        self._limits: dict[tuple[str, str], list[Limit]] = {}
        found = self.spec.constraints.items() if own.limits is None else own.limits
        former = [
            item
            for last, limits in self.spec.former_constraints.items()
            if own.limits is None and self.table.release <= release_number(last)
            for item in limits.items()
        ]
        for operator, limit in (*DOCUMENTED.items(), *found, *former):
            self._limits.setdefault(operator, []).append(limit)
        self._answers: dict[tuple[object, ...], Refusal | None] = {}
        self._lowered: Mapping[str, Operator] = {}
        self.quirks: frozenset[KnownBug] = self._bugs
        self._lower()

    def _lower(self) -> None:
        """Find the operators that fusions may make although the target lacks them, as rules lower them in the end."""
        self._lowered = lowered_operators(self.table, self.spec, self.max_opset)
        lacks = {LACKING[name] for name in self._lowered}
        # Fusions make Attention as kernels have it that give zeros for hidden rows, and rules lower it as that.
        zeroes = {Quirk.ZEROES_MASKED_ROWS} if "Attention" in self._lowered else set[KnownBug]()
        self.quirks = self._bugs | zeroes | lacks

    @classmethod
    def from_table(cls, path: str | Path, *, max_opset: int | None = None) -> Target:
        """A target stored by `to_table`.

        Raises:
            TargetError: The file cannot be read or is not a kernel table.
        """
        return cls(max_opset=max_opset, table=KernelTable.of_file(path))

    def limited(self, max_opset: int) -> Target:
        """The same target for results of at most this opset."""
        limited = copy.copy(self)
        limited.max_opset = max_opset
        limited._answers = {}
        limited._lower()
        return limited

    def without_lowering(self) -> Target:
        """The same target for pipelines that do not lower operators which the target lacks."""
        found = copy.copy(self)
        found._lowered, found._answers, found.quirks = {}, {}, self._bugs
        return found

    @property
    def lowers(self) -> bool:
        """Whether fusions may make operators that the target lacks, and rules lower them in the end."""
        return bool(self._lowered)

    def is_lowered(self, op_type: str) -> bool:
        """Whether rules lower an operator of ai.onnx for this target."""
        return op_type in self._lowered

    def with_bug(self, bug: KnownBug) -> Target:
        """The same target with a known bug, for tests of rules that are there because of it."""
        if bug in self.quirks:
            return self
        found = copy.copy(self)
        found.quirks = self.quirks | {bug}
        return found

    def to_table(self, path: str | Path) -> None:
        """Write the kernels as a JSON table that `from_table` reads, for use where this runtime is not installed.

        Raises:
            TargetError: The file cannot be written.
        """
        self.table.write(path)

    def supports(
        self, domain: str, op_type: str, opset: int | None, inputs: DTypes, outputs: Sequence[DType] = ()
    ) -> bool:
        """Whether the target executes an operator on these types; see `refusal`."""
        return self.refusal(domain, op_type, opset, inputs, outputs) is None

    def refusal(
        self, domain: str, op_type: str, opset: int | None, inputs: DTypes, outputs: Sequence[DType] = ()
    ) -> Refusal | None:
        """Why no kernel takes these types at version `opset` of the domain (`None`: the newest allowed); `None` if one does.

        An unknown type is accepted if the kernel takes every type that the operator allows there. Inputs and outputs beyond
        those given count as absent.
        """
        domain = "" if domain == "ai.onnx" else domain
        if not domain:
            # Not part of the cached answer, because the limit of a target may change.
            opset = self.max_opset if opset is None else opset
            if opset > self.max_opset and op_type not in self._lowered:
                return refuse("max_opset", Subject("operator", op_type), found=self.max_opset, needed=opset)
        given = by_name(inputs) if isinstance(inputs, Mapping) else tuple([type_string(kind) for kind in inputs])
        key = (domain, op_type, opset, given, tuple([type_string(kind) for kind in outputs]))
        if key not in self._answers:
            self._answers[key] = self._decide(domain, op_type, opset, inputs, outputs)
        return self._answers[key]

    def check_node(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> Refusal | None:
        """Why the target does not execute `node` at an opset that the result may use; `None` if it does.

        A `version` of the node itself takes precedence over the version that its model or function imports.
        """
        if (defined := opset_of_body(node)) > self.max_opset:
            return refuse("max_opset", Subject("operator", node.op_type), found=self.max_opset, needed=defined)
        version = _version(node, opset_imports)
        inputs = [ABSENT if value is None else facts.dtype(value) for value in node.inputs]
        outputs = [ABSENT if value.name == "" else facts.dtype(value) for value in node.outputs]
        refusal = self.refusal(node.domain, node.op_type, version, inputs, outputs)
        refusal = refusal or self._unless_known_attributes(node, version)
        if refusal is not None and refusal.code == "no_kernel" and self._computes_sizes(node, version, inputs, outputs):
            return None
        if refusal is None and not node.domain and version < BROADCASTS_FROM.get(node.op_type, 0):
            refusal = unless_alike(node, facts)
        return refusal or self.limit(node, facts)

    def leaves_to_another(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> bool:
        """Whether the target for sizes (`TargetSpec.sizes_on`) executes a node for want of a kernel: no sizes."""
        if not self.spec.sizes_on or not self.lacks_kernel(node, opset_imports, facts):
            return False
        version = _version(node, opset_imports)
        inputs = [ABSENT if value is None else facts.dtype(value) for value in node.inputs]
        outputs = [ABSENT if value.name == "" else facts.dtype(value) for value in node.outputs]
        return _target_of_sizes(self.spec.sizes_on).supports(node.domain, node.op_type, version, inputs, outputs)

    def _computes_sizes(self, node: ir.Node, version: int, inputs: Sequence[DType], outputs: Sequence[DType]) -> bool:
        """Whether a node without a kernel computes in int64, as sizes and positions are, and the target for these executes it.

        It may also make int32 of them, for which more targets have kernels.
        """
        kinds = (ABSENT, ir.DataType.INT64, *((ir.DataType.INT32,) if node.op_type == "Cast" else ()))
        if not self.spec.sizes_on or any(kind not in kinds for kind in outputs):
            return False
        return _target_of_sizes(self.spec.sizes_on).supports(node.domain, node.op_type, version, inputs, outputs)

    def _unless_known_attributes(self, node: ir.Node, version: int) -> Refusal | None:
        """Refuse a node with an attribute that its operator does not have in this build."""
        operator = self._operator(node.domain, node.op_type)
        schema = None if operator is None else operator.at(version)
        if schema is None or schema.attributes is None:
            return None
        unknown = next((name for name in node.attributes if name not in schema.attributes), None)
        if unknown is None:
            return None
        return _unfit(node.op_type, f"has no attribute {unknown} in {self.table.runtime}")

    def instead_of_kernel(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> str:
        """The runtime's way to execute a node that it has no kernel for, in words; empty if it cannot."""
        if has_body(node, _version(node, opset_imports)):
            return "it is inlined as its definition says"
        return "it is executed in float32, between Casts" if self.between_casts(node, opset_imports, facts) else ""

    def lacks_kernel(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> bool:
        """Whether the target has no kernel for the types of a node, whatever it does instead."""
        refusal = self.check_node(node, opset_imports, facts)
        return refusal is not None and refusal.code == "no_kernel"

    def may_have_kernel(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> bool:
        """Whether types of a node are not known here, and there are kernels for some that they may be."""
        operator = self.table.operators.get((node.domain, node.op_type))
        schema = None if operator is None else operator.at(_version(node, opset_imports))
        if operator is None or schema is None:
            return False
        inputs, outputs = (
            [ABSENT if value is None or value.name == "" else facts.dtype(value) for value in values]
            for values in (node.inputs, node.outputs)
        )
        try:
            bound = bind(schema, list(arguments(schema, inputs, outputs)))
        except MismatchError:
            return False
        kernels = [kernel for kernel in operator.kernels if kernel.serves(schema.since)]
        unknown = any(kind is None for _, kind in bound)
        return unknown and any(accepts(kernel, schema, bound, optimistic=True) for kernel in kernels)

    def between_casts(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> bool:
        """Whether the target executes a node in float32, between Casts that it inserts, for want of a float16 kernel.

        ONNX Runtime does so for some providers (`TargetSpec.half_in_float32`), with operators that it does not inline instead.
        """
        if (
            not self.spec.half_in_float32
            or has_body(node, _version(node, opset_imports))
            or self.limit(node, facts) is not None
        ):
            return False
        version = _version(node, opset_imports)
        inputs, outputs = (
            [ABSENT if value is None or value.name == "" else facts.dtype(value) for value in values]
            for values in (node.inputs, node.outputs)
        )
        if ir.DataType.FLOAT16 not in (*inputs, *outputs) or self.supports(
            node.domain, node.op_type, version, inputs, outputs
        ):
            return False
        wide = [[_as_float(kind) for kind in kinds] for kinds in (inputs, outputs)]
        return self.supports(node.domain, node.op_type, version, *wide)

    def inlines(self, node: ir.Node, opset_imports: Mapping[str, int], facts: Facts) -> bool:
        """Whether the runtime executes a node by the definition of its operator, or by the body that it was registered with."""
        custom = custom_operator(node.domain, node.op_type)
        if custom is not None:
            return custom.library is None
        inlined = not node.domain and is_inlined(node.op_type, _version(node, opset_imports))
        return inlined and self.lacks_kernel(node, opset_imports, facts)

    def with_documented_limits(self, domain: str, op_type: str) -> Target:
        """The same target for who takes care of the limits that were found on the kernels of an operator."""
        found, operator = copy.copy(self), (domain, op_type)
        found._limits = {**self._limits, operator: [DOCUMENTED[operator]] if operator in DOCUMENTED else []}
        return found

    def limit(self, node: ir.Node, facts: Facts) -> Refusal | None:
        """Why a kernel that is registered for the types of `node` refuses it all the same; `None` if it does not."""
        answers = (limit(node, facts) for limit in self._limits.get((node.domain, node.op_type), ()))
        return next((answer for answer in answers if answer is not None), None)

    def certain_limit(self, node: ir.Node, facts: Facts) -> Refusal | None:
        """Why a kernel refuses `node` in each run: for an attribute, or for sizes that are all known."""
        found = self.limit(node, facts)
        if found is None or found.subject.kind == "attribute":
            return found
        shapes = [facts.shape(value) for value in node.inputs if value is not None]
        is_open = any(shape is None or not all(isinstance(dim, int) for dim in shape) for shape in shapes)
        return None if is_open else found

    def min_opset(
        self, op_type: str, domain: str = "", inputs: DTypes = (), outputs: Sequence[DType] = ()
    ) -> int | None:
        """The lowest opset at which the operator exists and has a kernel for these types.

        For ai.onnx it does not exceed `max_opset`; for another domain it is a version of that domain. `None` if there is
        no such opset: `refusal` with opset `None` then tells why.
        """
        operator = self.table.operators.get((domain, op_type))
        for schema in operator.schemas if operator is not None else ():
            if self.supports(domain, op_type, schema.since, inputs, outputs):
                return schema.since
        return None

    def lost_by_raising(self, node: ir.Node, version: int, opset: int, facts: Facts) -> Refusal | None:
        """Why the target could no longer execute an ai.onnx node if `version` were raised to `opset`; `None` if it still could.

        A node that the target does not execute now counts as no loss.
        """
        operator = self.table.operators.get(("", node.op_type))
        old, new = (None, None) if operator is None else (operator.at(version), operator.at(opset))
        if operator is None or old is None or new is None or new.deprecated:
            return None  # the converter chooses what replaces a deprecated operator
        before, after = ([kernel for kernel in operator.kernels if kernel.serves(at.since)] for at in (old, new))
        if not after:
            executed = bool(before) or is_inlined(node.op_type, version)
            lost = executed and not (is_inlined(node.op_type, opset) and self._executes_body(node, opset, facts))
            return self._no_kernel(f"{node.op_type} at opset {opset}") if lost else None
        inlined = is_inlined(node.op_type, version)
        if old.since == new.since and (not inlined or is_inlined(node.op_type, opset)):
            return None
        inputs = [ABSENT if value is None else facts.dtype(value) for value in node.inputs]
        droppable = [value for place, value in enumerate(node.outputs) if place in droppable_outputs(node)]
        idle = [value for value in droppable if not value.uses() and not value.is_graph_output()]
        outputs = [ABSENT if value.name == "" or value in idle else facts.dtype(value) for value in node.outputs]
        if None in inputs or None in outputs:
            return None
        now, later = [self._decide("", node.op_type, at, inputs, outputs) for at in (version, opset)]
        # Of a body that is inlined because no kernel takes these types, the later form may need kernels that there are not.
        return later if now is None or inlined else None

    def _executes_body(self, node: ir.Node, opset: int, facts: Facts) -> bool:
        """Whether there are kernels for the operators that a node without a kernel is inlined as; true where that is unknown."""
        for op_type in operators_of_body(node, opset, facts):
            operator = self.table.operators.get(("", op_type))
            schema = None if operator is None else operator.at(opset)
            if operator is None or schema is None or is_inlined(op_type, opset):
                continue
            if not any(kernel.serves(schema.since) for kernel in operator.kernels):
                return False
        return True

    def _operator(self, domain: str, op_type: str) -> Operator | None:
        """An operator with its kernels; of one that is lowered, those of a build that has some."""
        lowered = None if domain else self._lowered.get(op_type)
        return lowered or self.table.operators.get((domain, op_type))

    def _decide(
        self, domain: str, op_type: str, opset: int | None, inputs: DTypes, outputs: Sequence[DType]
    ) -> Refusal | None:
        label = f"{domain + '.' if domain else ''}{op_type}"
        custom = custom_operator(domain, op_type)
        operator = self._operator(domain, op_type) if custom is None else custom.operator
        if operator is None:
            return refuse("no_operator", Subject("operator", label), needed=self.table.runtime)
        schema = operator.schemas[-1] if opset is None else operator.at(opset)
        if schema is None:
            since = operator.schemas[0].since
            return _unfit(label, f"does not exist before opset {since}, opset is {opset}")
        if schema.deprecated:
            return _unfit(label, f"is no longer part of its domain since version {schema.since}")
        label = f"{label} at version {opset or schema.since}"
        try:
            bound = bind(schema, list(arguments(schema, inputs, outputs)))
        except MismatchError as error:
            return _unfit(label, str(error))
        return self._find_kernel(label, operator, schema, bound)

    def _find_kernel(self, label: str, operator: Operator, schema: Schema, bound: Sequence[Argument]) -> Refusal | None:
        kernels = [kernel for kernel in operator.kernels if kernel.serves(schema.since)]
        if not kernels:
            return self._no_kernel(label)
        if any(accepts(kernel, schema, bound) for kernel in kernels):
            return None
        unknown = [formal.name for formal, kind in bound if kind is None]
        if unknown and any(accepts(kernel, schema, bound, optimistic=True) for kernel in kernels):
            return self._no_kernel(label, f"that takes any type: it depends on the unknown type of {unknown[0]}")
        types = ", ".join(dict.fromkeys(short(kind) for _, kind in bound if kind is not None))
        return self._no_kernel(label, f"on {types}")

    def _no_kernel(self, label: str, types: str = "") -> Refusal:
        return refuse("no_kernel", Subject("operator", label), found=types, needed=self.provider)


@functools.cache
def _target_of_sizes(name: str) -> Target:
    """The target on which another one executes arithmetic of sizes, as the newest stored table has it."""
    return Target(table=newest_table(spec_of(name)) or table_of(spec_of(name)), costs=CostTable({}))


def _unfit(label: str, why: str) -> Refusal:
    return refuse("signature", Subject("operator", label), found=why)


def _version(node: ir.Node, opset_imports: Mapping[str, int]) -> int:
    """The version of its domain at which a node is read."""
    return node.version if node.version is not None else opset_imports.get(node.domain, 1)


def _as_float(dtype: DType) -> DType:
    return ir.DataType.FLOAT if dtype == ir.DataType.FLOAT16 else dtype


def installed() -> Target:
    """The installed runtime on the default target."""
    return Target()
