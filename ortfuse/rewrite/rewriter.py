"""The one thing that edits graphs by rules: a worklist that runs a set of rules to their fixed point."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from ortfuse.dims import Dim, DimLike
from ortfuse.errors import OrtfuseError, RewriteError, RuleError
from ortfuse.facts.facts import Facts
from ortfuse.graph.edit import Edit, Inspector
from ortfuse.graph.schemas import kept_outputs
from ortfuse.graph.traits import CONTROL_FLOW
from ortfuse.graph.walk import Scope, captured_values, scopes
from ortfuse.pattern.language import Pattern
from ortfuse.pattern.match import Match, Miss
from ortfuse.refusal import Refusal, Subject, refuse
from ortfuse.rewrite.emit import Emitter
from ortfuse.rewrite.invariants import Debugging
from ortfuse.rewrite.log import Event, Log, Step
from ortfuse.rewrite.profitability import Chooser, FirstLegal
from ortfuse.rewrite.rule import Exactness, Rule, demand_proof
from ortfuse.targets.quirks import Quirk

RULE_KEY = "ortfuse.rule"
NODES_KEY = "ortfuse.nodes"
"""Metadata of a node that a rule made: the rule, and the names of the original nodes it stands for."""


class Legality(Protocol):
    """What the rewriter asks of a target: may this node stand in the result, and what is odd about it?"""

    @property
    def quirks(self) -> frozenset[Quirk]:
        """What it does that no definition of an operator says."""

    def check_node(self, node: ir.Node, opset_imports: dict[str, int], facts: Facts) -> Refusal | None:
        """Why not, or `None`."""


@dataclass
class Rewriter:
    """Runs rules over every graph of a model.

    Rules are indexed by the operators at their root; a node is looked at again only after something next to it changed.
    The `chooser` decides whether a legal rewrite is worth it, and between several. An `inspector`, if there is one, sees
    every rewrite before it is final and may object.
    """

    model: ir.Model
    facts: Facts
    target: Legality
    log: Log = field(default_factory=Log)
    inspector: Inspector | None = None
    debugging: Debugging = field(default_factory=Debugging)
    chooser: Chooser = field(default_factory=FirstLegal)

    def run(self, rules: Iterable[Rule]) -> int:
        """Apply `rules` until none applies; the number of rewrites.

        Raises:
            RuleError: A rule has no proof, or its code fails.
        """
        chosen = list(rules)
        for rule in chosen:
            demand_proof(rule)
        quirks = self.target.quirks
        run = _Run(self, [rule for rule in chosen if rule.because is None or rule.because in quirks])
        return run.to_fixed_point()


class _Run:
    def __init__(self, rewriter: Rewriter, rules: Sequence[Rule]) -> None:
        self.facts, self.target, self.log, self.model = rewriter.facts, rewriter.target, rewriter.log, rewriter.model
        self.chooser, self.inspector = rewriter.chooser, rewriter.inspector
        self.debugging = rewriter.debugging
        seed = rewriter.debugging.seed
        self.random = None if seed is None else random.Random(seed)
        self.scopes: dict[ir.Graph, Scope] = {}
        self.queue: deque[ir.Node] = deque()
        self.queued: set[ir.Node] = set()
        self.ops: Counter[str] = Counter()
        for scope in scopes(self.model):
            self.scopes[scope.graph] = scope
            for node in scope.graph:
                self.ops[node.op_type] += 1
                self.push(node)
        # Consumers first: the outermost of several possible matches is the largest.
        self.queue.reverse()
        self.index: dict[str, list[Rule]] = defaultdict(list)
        for rule in rules:
            for head in rule.matcher.heads:
                self.index[head].append(rule)
        self.depths: dict[str, int] = {}
        for rule in rules:
            for op_type, depth in rule.matcher.depths.items():
                self.depths[op_type] = max(self.depths.get(op_type, 0), depth)
        self.limit = 1000 + 30 * len(self.queue)
        self.unsorted: set[ir.Graph] = set()

    def push(self, node: ir.Node | None) -> None:
        if node is not None and node not in self.queued:
            self.queued.add(node)
            self.queue.append(node)

    def wake(self, node: ir.Node | None) -> None:
        """Look again at `node` and at every node whose match could reach down to it."""
        if node is None:
            return
        self.push(node)
        level, seen = [node], {node}
        for _ in range(self.depths.get(node.op_type, 0)):
            above = {
                use.node
                for below in level
                for output in below.outputs
                for use in output.uses()
                if use.node.op_type in self.depths and use.node not in seen
            }
            if not above:
                break
            seen |= above
            level = list(above)
            for consumer in level:
                self.push(consumer)

    def to_fixed_point(self) -> int:
        count = 0
        while self.queue:
            if self.random is not None:
                self.queue.rotate(self.random.randrange(len(self.queue)))
            node = self.queue.popleft()
            if node not in self.queued:
                continue  # it was moved to the front before
            self.queued.discard(node)
            if node.graph is None or node.op_type not in self.index:
                continue
            above = [consumer for consumer in _consumers(node) if consumer in self.queued]
            for rule in self.index[node.op_type]:
                if above and any(consumer.op_type in rule.matcher.heads for consumer in above):
                    # A match with more of the rule's optional parts may end there; rules after this one wait as well.
                    self.queued.add(node)
                    self.queue.extendleft([node, *above])
                    break
                if self._attempt(rule, node):
                    count += 1
                    if count > self.limit:
                        raise _endless(self.log.events)
                    break
        for graph in self.unsorted:
            graph.sort()
        return count

    def _attempt(self, rule: Rule, node: ir.Node) -> bool:
        # Operators in `ops` may have gone in the meantime; counting only up keeps this a cheap early reject.
        if not all(op_type in self.ops for op_type in rule.matcher.required):
            return False
        if not self.log.explain and not rule.matcher.may_match(node):
            return False
        started = time.perf_counter()
        statistics = self.log.statistics(rule.name, rule.is_refinement)
        statistics.attempts += 1
        applied = False
        for output in node.outputs:
            if output.uses() or output.is_graph_output():
                with _author_of(rule, output):
                    found = rule.matcher.match(output, self.facts, rule.allow_extra_operands, self.target.quirks)
                applied = isinstance(found, Match) and self._apply(rule, found, started)
                if isinstance(found, Miss) and self.log.explain and found.matched > 0:
                    step: Step = "guards" if found.whole else "pattern"
                    self.log.miss(rule.name, output, step, found.matched, found.refusal, found.nodes)
                if applied:
                    break
        statistics.seconds += time.perf_counter() - started
        return applied

    def _apply(self, rule: Rule, match: Match, started: float) -> bool:
        refusal = self.chooser.refusal(rule, match)
        refusals = [] if refusal is None else [refusal]
        if refusal is None:
            for replacement, may_raise in self._candidates(rule, match):
                refusal = self._replace(rule, match, replacement, may_raise, started)
                if refusal is None:
                    self.log.statistics(rule.name).hits += 1
                    return True
                if may_raise:
                    refusals.append(refusal)
        if self.log.explain:
            # What was in the way of the replacement that is wanted most, not of a makeshift.
            self.log.miss(rule.name, match.root, "replacement", len(match.nodes), refusals[0], match.nodes)
        return False

    def _candidates(self, rule: Rule, match: Match) -> Iterator[tuple[Pattern, bool]]:
        """Replacements in the order in which they are tried, and whether they may need a higher opset.

        In the order of the rule or, where that is measured, the fastest first; what needs a higher opset than the model has
        only if nothing else is legal (or worth it).
        """
        found = list(self.chooser.candidates(rule))
        if len(found) > 1 and self.chooser.measures(rule):
            found.sort(key=lambda replacement: -(self._measured(rule, match, replacement) or 0.0))
        for may_raise in (True,) if rule.may_raise_opset else (False, True):
            yield from ((replacement, may_raise) for replacement in found)

    def _measured(self, rule: Rule, match: Match, replacement: Pattern) -> float | None:
        """How many times faster a replacement is than what it replaces, `None` if it is not legal or not to be measured."""
        prepared = self._prepare(rule, match, replacement, may_raise=True)
        if isinstance(prepared, Refusal):
            return None
        emitter, edit = prepared
        speed = self.chooser.speedup(edit)
        self._withdraw(emitter, edit.scope)
        return speed

    def _replace(
        self, rule: Rule, match: Match, replacement: Pattern, may_raise: bool, started: float
    ) -> Refusal | None:
        prepared = self._prepare(rule, match, replacement, may_raise)
        if isinstance(prepared, Refusal):
            return prepared
        emitter, edit = prepared
        refusal = self.chooser.objection(edit)
        if refusal is None and self.inspector is not None:
            refusal = self.inspector.objection(edit)
        if refusal is not None:
            self._withdraw(emitter, edit.scope)
            return refusal
        self._finish(edit, started)
        return None

    def _prepare(
        self, rule: Rule, match: Match, replacement: Pattern, may_raise: bool
    ) -> tuple[Emitter, Edit] | Refusal:
        """Build a replacement beside what it is to replace; a refusal, and nothing built, if that cannot be or is not legal."""
        root_node = match.root.producer()
        assert root_node is not None
        assert root_node.graph is not None
        scope = self.scopes[root_node.graph]
        emitter = Emitter(match, scope.opset, self.facts.dtype(match.root), rule.name)
        with _author_of(rule, match.root):
            new_root = emitter.build(replacement)
        if new_root is None:
            return refuse("no_replacement", match.root)
        new_root = _with_extra_operands(emitter, match, new_root)
        outputs = [(match.root, new_root)]
        for label, pattern in rule.intermediates_with(replacement).items():
            old = match.get(label)
            if old is not None and old is not match.root and match.is_used_elsewhere(label):
                with _author_of(rule, match.root):
                    value = emitter.build(pattern)
                if value is None:
                    return match.refuse("no_replacement", label)
                outputs.append((old, value))
        refusal = emitter.problem or _renamed_output(emitter, outputs)
        if refusal is None:
            refusal = self._adopt(emitter, scope, root_node, may_raise) or self._same_type(outputs, rule.exactness)
        if refusal is None and len(outputs) > 1 and _depends_on(emitter.nodes, {old for old, _ in outputs[1:]}, match):
            refusal = refuse("cycle", match.root)
        if refusal is not None:
            self._withdraw(emitter, scope)
            return refusal
        edit = Edit(rule.name, match.nodes, emitter.nodes, outputs, scope, self.facts, rule, match)
        return emitter, edit

    def _adopt(self, emitter: Emitter, scope: Scope, before: ir.Node, may_raise: bool) -> Refusal | None:
        """Put the new nodes into the graph and learn their facts; a refusal if the target cannot execute one."""
        graph = scope.graph
        for node in emitter.nodes:
            if not may_raise and not node.domain and (node.version or 0) > scope.opset:
                return refuse("opset", Subject("operator", node.op_type), found=scope.opset, needed=node.version)
        for value in emitter.initializers:
            value.name = _fresh_name(scope.root, "const")
            scope.root.register_initializer(value)
        if emitter.nodes:
            graph.insert_before(before, emitter.nodes)
        for node in emitter.nodes:
            if node.domain and node.domain not in scope.root.opset_imports:
                scope.root.opset_imports[node.domain] = 1
            self.facts.node_added(node)
            refusal = self.target.check_node(node, scope.root.opset_imports, self.facts)
            if refusal is not None:
                return refusal
        return None

    def _same_type(self, outputs: list[tuple[ir.Value, ir.Value]], exactness: Exactness) -> Refusal | None:
        """Why the new values are not of the dtype and shape of the old ones; an exact rule must make that provable."""
        for old, new in outputs:
            if self.facts.dtype(old) != self.facts.dtype(new) and self.facts.dtype(new) is not None:
                return refuse("result_dtype", old, found=self.facts.dtype(new), needed=self.facts.dtype(old))
            old_shape, new_shape = self.facts.shape(old), self.facts.shape(new)
            if old_shape is None and new_shape is not None:
                return refuse("result_shape", old, found=new_shape, needed="one that is not known")
            if old_shape is None or new_shape is None:
                continue
            if len(old_shape) != len(new_shape) or any(
                a != b and not (exactness is not Exactness.EXACT and _may_agree(a, b))
                for a, b in zip(old_shape, new_shape, strict=True)
            ):
                return refuse("result_shape", old, found=new_shape, needed=old_shape)
        return None

    def _withdraw(self, emitter: Emitter, scope: Scope) -> None:
        for node in reversed(emitter.nodes):
            self.facts.node_removed(node)
            if node.graph is not None:
                scope.graph.remove(node)
        emitter.discard()
        for value in emitter.initializers:
            if value.name is not None:
                scope.root.initializers.pop(value.name, None)

    def _finish(self, edit: Edit, started: float) -> None:
        """Let the new nodes take the place of the old ones."""
        rule, match, outputs = edit.rule, edit.match, edit.outputs
        for node in edit.added:
            self.ops[node.op_type] += 1
            _drop_unused_outputs(node, [new for _, new in outputs])
        neighbours = [use.node for old, _ in outputs for use in old.uses()]
        for old, new in outputs:
            _replace_value(old, new, new.producer() in edit.added)
            self.facts.value_replaced(old, new)
        removed = self._sweep(match.nodes)
        _annotate(rule, edit.added, match.nodes)
        if len(outputs) > 1:
            self.unsorted.add(edit.scope.graph)
        for node in neighbours:
            self.push(node)
        for node in edit.added:
            self.wake(node)
            for value in node.inputs:
                if value is not None:
                    self.push(value.producer())
        self.debugging.inspect(self.model, self.facts, rule.name, self.unsorted)
        self.log.events.append(
            Event(
                rule.name,
                outputs[0][1].name or "?",
                tuple(node.op_type for node in removed),
                tuple(node.op_type for node in edit.added),
                time.perf_counter() - started,
            )
        )

    def _sweep(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        """Remove those of `nodes` that nothing uses any more, and whatever only they used."""
        removed: list[ir.Node] = []
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if node.graph is None or any(out.uses() or out.is_graph_output() for out in node.outputs):
                continue
            if node.op_type in CONTROL_FLOW:  # dead-code elimination decides about nodes with subgraphs
                continue
            inputs = [value for value in node.inputs if value is not None]
            graph = node.graph
            self.facts.node_removed(node)
            graph.remove(node, safe=True)
            removed.append(node)
            for value in inputs:
                producer = value.producer()
                if producer is not None:
                    pending.append(producer)
                # A value that lost a use may now be private to a pattern that it blocked before.
                self.wake(producer)
        return removed


def _consumers(node: ir.Node) -> list[ir.Node]:
    return [use.node for output in node.outputs for use in output.uses()]


def _drop_unused_outputs(node: ir.Node, wanted: list[ir.Value]) -> None:
    """Optional outputs that nothing uses are not asked for: the runtime would compute them."""
    kept = kept_outputs(node)
    used = [bool(out.uses()) or out in wanted or number in kept for number, out in enumerate(node.outputs)]
    while len(used) > 1 and not used[-1]:
        used.pop()
    node.resize_outputs(len(used))
    for output, is_used in zip(node.outputs, used, strict=True):
        if not is_used:
            output.name = ""


@contextmanager
def _author_of(rule: Rule, site: ir.Value) -> Iterator[None]:
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


def _with_extra_operands(emitter: Emitter, match: Match, root: ir.Value) -> ir.Value:
    names = ("Mul", "Div") if match.extra_are_factors else ("Add", "Sub")
    for sign, value in match.extra_operands:
        root = emitter.node(names[0] if sign > 0 else names[1], [root, value]).outputs[0]
    return root


def _depends_on(nodes: Sequence[ir.Node], outputs: set[ir.Value], match: Match) -> bool:
    """Whether an input of the new nodes is computed from a value that the new nodes are to compute."""
    inside = set(match.nodes)
    upstream = {value for output in outputs for value in (output.producer().inputs if output.producer() else ())}  # type: ignore[union-attr]
    created = {out for node in nodes for out in node.outputs}
    stack = [v for node in nodes for v in node.inputs if v is not None and v not in created and v not in upstream]
    seen: set[ir.Value] = set()
    while stack:
        value = stack.pop()
        if value in outputs:
            return True
        producer = value.producer()
        if value in seen or producer is None or value in upstream:
            continue
        seen.add(value)
        if len(seen) > 10_000:
            return True
        if producer not in inside:
            stack.extend(operand for operand in producer.inputs if operand is not None)
            stack.extend(captured_values(producer))
    return False


def _replace_value(old: ir.Value, new: ir.Value, made: bool) -> None:
    """Let `new` take the place of `old`, and its name if `new` was made here or `old` is known by name outside."""
    name, metadata = old.name, dict(old.metadata_props)
    rename = made or old.is_graph_output()
    if rename:
        new.type, new.shape = new.type or old.type, new.shape or old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if rename and name is not None:
        old.name = None
        new.name = name
        new.metadata_props.update(metadata)


def _may_agree(one: DimLike, other: DimLike) -> bool:
    """Whether two dimensions that are not provably equal may still be the same: not if both are plain polynomials."""
    return any(
        isinstance(dim, Dim) and (dim.fresh or any(atom.kind for monomial, _ in dim.terms for atom in monomial))
        for dim in (one, other)
    )


def _must_keep_name(old: ir.Value, new: ir.Value) -> bool:
    """Whether `old` is a graph output that `new`, which has a name of its own to keep, cannot stand for."""
    return old.is_graph_output() and (
        new.producer() is None or new.is_graph_output() or new.producer().graph is not old.producer().graph  # type: ignore[union-attr]
    )


def _renamed_output(emitter: Emitter, outputs: Iterable[tuple[ir.Value, ir.Value]]) -> Refusal | None:
    """A refusal for a graph output that cannot be the same value as an input, constant or other output."""
    for old, new in outputs:
        if new.producer() not in emitter.nodes and _must_keep_name(old, new):
            return refuse("output_is_input", old, found=new)
    return None


def _annotate(rule: Rule, added: Sequence[ir.Node], matched: Sequence[ir.Node]) -> None:
    names: dict[str, None] = {}
    for node in matched:
        origin = node.metadata_props.get(NODES_KEY)
        for name in origin.split(";") if origin else [node.name or node.op_type]:
            names.setdefault(name)
    for node in added:
        node.metadata_props[RULE_KEY] = rule.name
        node.metadata_props[NODES_KEY] = ";".join(names)


def _fresh_name(graph: ir.Graph, stem: str) -> str:
    counter = graph.meta.get("ortfuse.names", 0)
    while f"ortfuse_{stem}_{counter}" in graph.initializers:
        counter += 1
    graph.meta["ortfuse.names"] = counter + 1
    return f"ortfuse_{stem}_{counter}"


def _endless(events: Sequence[Event]) -> RewriteError:
    recent = Counter(event.rule for event in events[-200:])
    rules = " and ".join(name for name, _ in recent.most_common(3))
    sites = ", ".join(dict.fromkeys(event.site for event in events[-8:]))
    return RewriteError(
        f"the rules {rules} undo each other without end (around {sites}); change one of them or leave it out"
    )


__all__ = ["Legality", "Miss", "Rewriter"]
