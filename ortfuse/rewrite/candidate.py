"""A replacement built beside what it is to replace, as far as it is legal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import onnx_ir as ir

from ortfuse.dims import Dim, DimLike
from ortfuse.errors import OrtfuseError, RuleError
from ortfuse.facts.facts import Facts
from ortfuse.graph.editor import Editor
from ortfuse.graph.walk import captured_values
from ortfuse.pattern.language import Pattern
from ortfuse.pattern.match import Match
from ortfuse.refusal import Refusal, Subject, refuse
from ortfuse.rewrite.emit import Emitter
from ortfuse.rewrite.rule import Exactness, Rule
from ortfuse.targets.quirks import Quirk

Outputs = list[tuple[ir.Value, ir.Value]]
"""Values that are to be replaced, each with the one that takes its place; the root of the match first."""

_MOST_VALUES = 10_000
"""Values that are looked at to see whether the new nodes would depend on themselves."""


class Legality(Protocol):
    """What the rewriter asks of a target: may this node stand in the result, and what is odd about it?"""

    @property
    def quirks(self) -> frozenset[Quirk]:
        """What it does that no definition of an operator says."""

    def check_node(self, node: ir.Node, opset_imports: dict[str, int], facts: Facts) -> Refusal | None:
        """Why not, or `None`."""


class Candidate:
    """One of the replacements of a rule where the rule matches. Its nodes are to be discarded if it is not used.

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

    def build(self, target: Legality, may_raise: bool) -> Outputs | Refusal:
        """Put the new nodes into the graph, where nothing uses them yet.

        Args:
            target: Says which nodes may be there.
            may_raise: Whether they may need a higher opset than the model has.
        """
        found = self._emit()
        if isinstance(found, Refusal):
            return found
        refusal = self._emitter.problem or self._renamed_output(found)
        refusal = refusal or self._adopt(target, may_raise) or self._other_type(found)
        if refusal is None and len(found) > 1 and self._depends_on_itself({old for old, _ in found[1:]}):
            refusal = refuse("cycle", self._match.root)
        return found if refusal is None else refusal

    def _emit(self) -> Outputs | Refusal:
        match = self._match
        with author_of(self._rule, match.root):
            root = self._emitter.build(self._replacement)
        if root is None:
            return refuse("no_replacement", match.root)
        names = ("Mul", "Div") if match.extra_are_factors else ("Add", "Sub")
        for sign, value in match.extra_operands:
            root = self._emitter.node(names[0] if sign > 0 else names[1], [root, value]).outputs[0]
        outputs = [(match.root, root)]
        for label, pattern in self._rule.intermediates_with(self._replacement).items():
            old = match.get(label)
            if old is not None and old is not match.root and match.is_used_elsewhere(label):
                with author_of(self._rule, match.root):
                    new = self._emitter.build(pattern)
                if new is None:
                    return match.refuse("no_replacement", label)
                outputs.append((old, new))
        return outputs

    def _renamed_output(self, outputs: Outputs) -> Refusal | None:
        """A refusal for a graph output that cannot be the same value as an input, constant or other output."""
        for old, new in outputs:
            if new.producer() not in self.nodes and _must_keep_name(old, new):
                return refuse("output_is_input", old, found=new)
        return None

    def _adopt(self, target: Legality, may_raise: bool) -> Refusal | None:
        """Put the new nodes into the graph and learn their facts; a refusal if the target cannot execute one."""
        opset, imports = self._scope.opset, self._scope.root.opset_imports
        for node in self.nodes:
            if not may_raise and not node.domain and (node.version or 0) > opset:
                return refuse("opset", Subject("operator", node.op_type), found=opset, needed=node.version)
        for value in self._emitter.initializers:
            assert value.const_value is not None
            self._editor.add_constant(self._root_node, value.const_value, value)
        for node in self.nodes:
            self._editor.insert_before(self._root_node, node)
            refusal = target.check_node(node, imports, self._facts)
            if refusal is not None:
                return refusal
        return None

    def _other_type(self, outputs: Outputs) -> Refusal | None:
        """Why the new values are not of the dtype and shape of the old ones; an exact rule must make that provable."""
        facts = self._facts
        for old, new in outputs:
            if facts.dtype(old) != facts.dtype(new) and facts.dtype(new) is not None:
                return refuse("result_dtype", old, found=facts.dtype(new), needed=facts.dtype(old))
            old_shape, new_shape = facts.shape(old), facts.shape(new)
            if old_shape is None and new_shape is not None:
                return refuse("result_shape", old, found=new_shape, needed="one that is not known")
            if old_shape is None or new_shape is None:
                continue
            if len(old_shape) != len(new_shape) or any(
                a != b and not (self._rule.exactness is not Exactness.EXACT and _may_agree(a, b))
                for a, b in zip(old_shape, new_shape, strict=True)
            ):
                return refuse("result_shape", old, found=new_shape, needed=old_shape)
        return None

    def _depends_on_itself(self, outputs: set[ir.Value]) -> bool:
        """Whether an input of the new nodes is computed from a value that the new nodes are to compute."""
        inside = set(self._match.nodes)
        upstream = {value for output in outputs for value in _inputs(output.producer())}
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


@contextmanager
def author_of(rule: Rule, site: ir.Value) -> Iterator[None]:
    """Around the guards and computed constants of a rule, which are code of its author: an exception names the rule."""
    try:
        yield
    except OrtfuseError:
        raise
    except Exception as error:
        raise RuleError(
            f"rule {rule.name} fails at '{site.name}': {type(error).__name__}: {error}; correct its guards and computed "
            f"constants, or leave it out"
        ) from error


def _inputs(node: ir.Node | None) -> Iterable[ir.Value]:
    return () if node is None else [value for value in node.inputs if value is not None]


def _may_agree(one: DimLike, other: DimLike) -> bool:
    """Whether two dimensions that are not provably equal may still be the same: not if both are plain polynomials."""
    return any(
        isinstance(dim, Dim) and (dim.fresh or any(atom.kind for monomial, _ in dim.terms for atom in monomial))
        for dim in (one, other)
    )


def _must_keep_name(old: ir.Value, new: ir.Value) -> bool:
    """Whether `old` is a graph output that `new`, which has a name of its own to keep, cannot stand for."""
    producer, replaced = new.producer(), old.producer()
    return old.is_graph_output() and (
        producer is None or new.is_graph_output() or replaced is None or producer.graph is not replaced.graph
    )
