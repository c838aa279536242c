"""Build a replacement beside the matched nodes and check its legality."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import OrtfuseError, PatternError, RuleError
from ortfuse.ir.dims import Dim, DimLike
from ortfuse.ir.editor import Editor
from ortfuse.ir.refusal import Refusal, Subject, refuse
from ortfuse.ir.schemas import accepts, schema_at
from ortfuse.ir.traits import MICROSOFT
from ortfuse.ir.walk import captured_values
from ortfuse.rewrite.emit import Emitter
from ortfuse.rewrite.pattern.language import Pattern
from ortfuse.rewrite.pattern.match_operators import Match
from ortfuse.rewrite.rule import Exactness, Rule
from ortfuse.targets.known_bugs import KnownBug
from ortfuse.targets.target_spec import TargetSpec

Outputs = list[tuple[ir.Value, ir.Value]]
"""Pairs of a value to replace and its replacement; the roots of the match come first."""

_MOST_VALUES = 10_000
"""The most values visited to see whether the new nodes would depend on themselves."""


class Legality(Protocol):
    """The part of a target that the rewriter needs: which nodes it executes, and which bugs are known."""

    @property
    def spec(self) -> TargetSpec:
        """The declaration of the target."""

    @property
    def quirks(self) -> frozenset[KnownBug]:
        """Behaviour of the runtime that the operator definitions do not describe."""

    def check_node(self, node: ir.Node, opset_imports: dict[str, int], facts: Facts) -> Refusal | None:
        """Why the target cannot execute a node; `None` if it can."""

    def limit(self, node: ir.Node, facts: Facts) -> Refusal | None:
        """Why a kernel that is registered for the types of a node refuses it all the same; `None` if it does not."""

    def certain_limit(self, node: ir.Node, facts: Facts) -> Refusal | None:
        """Why such a kernel refuses a node in each run; `None` if it may take it."""

    def inlines(self, node: ir.Node, opset_imports: dict[str, int], facts: Facts) -> bool:
        """Whether the target executes a node by the definition of its operator alone."""

    def lacks_kernel(self, node: ir.Node, opset_imports: dict[str, int], facts: Facts) -> bool:
        """Whether the target has no kernel for the types of a node, whatever it does instead."""

    def between_casts(self, node: ir.Node, opset_imports: dict[str, int], facts: Facts) -> bool:
        """Whether the target executes a node in another type than its own, for want of a kernel."""

    def leaves_to_another(self, node: ir.Node, opset_imports: dict[str, int], facts: Facts) -> bool:
        """Whether another target executes a node, for want of a kernel."""


class Candidate:
    """One of the replacements of a rule at a match. Its nodes must be discarded if it is not used.

    Args:
        rule: The rule.
        match: Where it matches.
        replacement: The replacement.
        editor: Puts the new nodes into the graph.
        facts: What is known about the graph.
    """

    def __init__(self, rule: Rule, match: Match, replacement: Pattern, editor: Editor, facts: Facts) -> None:
        self._rule, self._match, self._replacement = rule, match, replacement
        self._editor, self._facts = editor, facts
        root = match.root.producer()
        assert root is not None
        self._root_node = root
        self._scope = editor.scope_of(root.graph)
        self._emitter = Emitter(match, self._scope.opset, facts.dtype(match.root), rule.name)

    @property
    def nodes(self) -> Sequence[ir.Node]:
        """The new nodes."""
        return self._emitter.nodes

    def build(self, target: Legality, may_raise: bool, insists: bool = True) -> Outputs | Refusal:
        """Insert the new nodes into the graph, where nothing uses them yet.

        Args:
            target: Decides which nodes are legal.
            may_raise: Whether the new nodes may need a higher opset than the model has.
            insists: Whether a rule that says so may make operators that are executed by their definition.
        """
        found = self._emit()
        if isinstance(found, Refusal):
            return found
        refusal = self._emitter.problem or self._renamed_output(found)
        refusal = refusal or self._adopt(target, may_raise, insists) or self._other_type(found)
        apart = found if len(self._match.roots) > 1 else found[1:]
        if refusal is None and apart and self._depends_on_itself({old for old, _ in apart}):
            refusal = refuse("cycle", self._match.root)
        return found if refusal is None else refusal

    def _emit(self) -> Outputs | Refusal:
        match = self._match
        with author_of(self._rule, match.root):
            made = self._emitter.results(self._replacement)
        root, *others = made
        if root is None:
            return refuse("no_replacement", match.root)
        names = ("Mul", "Div") if match.extra_are_factors else ("Add", "Sub")
        for sign, value in match.extra_operands:
            root = self._emitter.node(names[0] if sign > 0 else names[1], [root, value]).outputs[0]
        outputs = [(match.root, root)]
        for old, other in zip(match.roots[1:], others, strict=True):
            if other is None:
                return refuse("no_replacement", old)
            outputs.append((old, other))
        for label, pattern in self._rule.intermediates_with(self._replacement).items():
            old = match.get(label)
            if old is not None and old not in match.roots and match.is_used_elsewhere(label):
                with author_of(self._rule, match.root):
                    new = self._emitter.build(pattern)
                if new is None:
                    return match.refuse("no_replacement", label)
                outputs.append((old, new))
        return outputs

    def _renamed_output(self, outputs: Outputs) -> Refusal | None:
        """A refusal if a graph output would become the same value as an input, a constant or another output."""
        for old, new in outputs:
            if new.producer() not in self.nodes and _must_keep_name(old, new):
                return refuse("output_is_input", old, found=new)
        return None

    def _adopt(self, target: Legality, may_raise: bool, insists: bool) -> Refusal | None:
        """Insert the new nodes into the graph and compute their facts; a refusal if the target cannot execute one."""
        opset, imports = self._scope.opset, self._scope.root.opset_imports
        for node in self.nodes:
            if not may_raise and not node.domain and (node.version or 0) > opset:
                return refuse("opset", Subject("operator", node.op_type), found=opset, needed=node.version)
            if (unknown := self._unknown_to_model(node)) is not None:
                return unknown
        for value in self._emitter.initializers:
            assert value.const_value is not None
            self._editor.add_constant(self._root_node, value.const_value, value)
        detours, left = 0, 0
        for node in self.nodes:
            self._editor.insert_before(self._root_node, node)
            refusal = target.check_node(node, imports, self._facts)
            if refusal is not None and target.leaves_to_another(node, imports, self._facts):
                left += 1
                refusal = None if left <= self._left_before(target) else refusal
            if refusal is not None and refusal.code == "no_kernel" and target.between_casts(node, imports, self._facts):
                detours += 1
                refusal = None if detours <= self._detours(target) else refusal
            if refusal is not None and refusal.code == "no_kernel" and self._is_decomposed(node, target):
                refusal = None
            if self._rule.by_definition and target.inlines(node, imports, self._facts):
                refusal = None if insists else _defined_alone(node, self._match.root)
            if refusal is None and not insists and node.domain == MICROSOFT and target.spec.fuses_itself:
                made = f"{node.domain}.{node.op_type}"
                refusal = refuse("unasked", self._match.root, found=f"--force {self._rule.family}={made}", needed=made)
            if refusal is None and not insists and (node.domain, node.op_type) in target.spec.untried:
                made = f"{node.domain}.{node.op_type}".strip(".")
                refusal = refuse("untried", self._match.root, found=f"--force {self._rule.family}={made}", needed=made)
            if refusal is not None:
                return refusal
        return None

    def _is_decomposed(self, node: ir.Node, target: Legality) -> bool:
        """Whether the rule spells out an operator without a kernel by another one that decompositions of the target take away."""
        return self._rule.spells_out and (node.domain, node.op_type) in target.spec.decomposed

    def _left_before(self, target: Legality) -> int:
        """The number of matched nodes that another target executes for want of a kernel: as many of the new ones may be."""
        imports = self._scope.root.opset_imports
        return sum(target.leaves_to_another(one, imports, self._facts) for one in self._match.nodes)

    def _detours(self, target: Legality) -> int:
        """The number of new nodes that may run in another type: that of the matched ones, if one of these had no kernel."""
        imports, nodes = self._scope.root.opset_imports, self._match.nodes
        return len(nodes) if any(target.lacks_kernel(node, imports, self._facts) for node in nodes) else 0

    def _unknown_to_model(self, node: ir.Node) -> Refusal | None:
        """A refusal of what the main graph's opset lacks, if the scope is a function's: there the runtime looks it up."""
        main = self._editor.model.graph
        if self._scope.root is main or node.domain:
            return None
        opset, needed = main.opset_imports.get("", 1), node.version or self._scope.opset
        if schema_at(node.op_type, needed) is None or accepts(node, opset):
            return None
        return refuse("opset", Subject("operator", node.op_type), found=opset, needed=needed)

    def _other_type(self, outputs: Outputs) -> Refusal | None:
        """A refusal if the new values differ from the old ones in dtype or shape, or an exact rule cannot be shown to agree.

        Rules that make allowance for a runtime write an operator in another way, of which nothing may be known either.
        """
        facts = self._facts
        shown = self._rule.exactness is Exactness.EXACT and self._rule.because is None
        for old, new in outputs:
            if facts.dtype(old) != facts.dtype(new) and facts.dtype(new) is not None:
                return refuse("result_dtype", old, found=facts.dtype(new), needed=facts.dtype(old))
            old_shape, new_shape = facts.shape(old), facts.shape(new)
            if old_shape is None and new_shape is not None:
                return refuse("result_shape", old, found=new_shape, needed="one that is not known")
            if old_shape is None or new_shape is None:
                continue
            if len(old_shape) != len(new_shape) or any(
                a != b and (shown or not _may_agree(a, b)) for a, b in zip(old_shape, new_shape, strict=True)
            ):
                return refuse("result_shape", old, found=new_shape, needed=old_shape)
        return None

    def _depends_on_itself(self, outputs: set[ir.Value]) -> bool:
        """Whether an input of the new nodes depends on a value that the new nodes compute."""
        inside = set(self._match.nodes)
        intermediates = outputs.difference(self._match.roots)
        upstream = {value for output in intermediates for value in _inputs(output.producer())}
        if not intermediates:
            # The matcher has seen that none of the roots is computed from another.
            upstream = {value for node in inside for value in _inputs(node) if value.producer() not in inside}
        created = {out for node in self.nodes for out in node.outputs}
        stack = [v for node in self.nodes for v in _inputs(node) if v not in created and v not in upstream]
        seen: set[ir.Value] = set()
        while stack:
            value = stack.pop()
            if value in outputs:
                return True
            producer = value.producer()
            if value in seen or producer is None or value in upstream:
                continue
            seen.add(value)
            if len(seen) > _MOST_VALUES:
                return True
            if producer not in inside:
                stack.extend(_inputs(producer))
                stack.extend(captured_values(producer))
        return False


def _defined_alone(node: ir.Node, site: ir.Value) -> Refusal:
    return refuse("needless", site, found=f"{node.op_type} would be executed by its definition, as --force takes it")


@contextmanager
def author_of(rule: Rule, site: ir.Value) -> Iterator[None]:
    """Wrap calls of a rule's guards and computed constants, which are its author's code: exceptions then name the rule."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OrtfuseError) and not isinstance(error, PatternError):
            raise
        what = str(error) if isinstance(error, PatternError) else f"{type(error).__name__}: {error}"
        raise RuleError(
            f"rule {rule.name} fails at '{site.name}': {what}; correct its guards and computed constants, or leave it out"
        ) from error


def _inputs(node: ir.Node | None) -> Iterable[ir.Value]:
    return () if node is None else [value for value in node.inputs if value is not None]


def _may_agree(one: DimLike, other: DimLike) -> bool:
    """Whether two dimensions that are not provably equal may still be equal: not if both are plain polynomials."""
    return any(
        isinstance(dim, Dim) and (dim.fresh or any(atom.kind for monomial, _ in dim.terms for atom in monomial))
        for dim in (one, other)
    )


def _must_keep_name(old: ir.Value, new: ir.Value) -> bool:
    """Whether `old` is a graph output that `new` cannot replace because it has a name of its own to keep."""
    producer, replaced = new.producer(), old.producer()
    return old.is_graph_output() and (
        producer is None or new.is_graph_output() or replaced is None or producer.graph is not replaced.graph
    )
