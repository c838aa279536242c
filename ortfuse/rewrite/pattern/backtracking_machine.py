"""Backtracking matcher: goals, choice points and bindings, like a small Prolog.

A goal says "this pattern must match this value". Handlers (see `ortfuse.rewrite.pattern.match_operators`) turn one goal
into its subgoals, or open a choice point (which operand order, which alternative, which part of a sum) to which
matching returns when a later goal fails. A trail records bindings so that they can be undone. Recursion depth is
bounded by the pattern, not the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import RuleError
from ortfuse.ir.refusal import Refusal, Subject, refuse, words
from ortfuse.rewrite.pattern.compiled_pattern import CompiledPattern
from ortfuse.rewrite.pattern.language import Pattern
from ortfuse.rewrite.pattern.match_result import Captures, Guard, Match, Miss, Ranges
from ortfuse.rewrite.pattern.pattern_properties import capture_names
from ortfuse.targets.known_bugs import KnownBug
from ortfuse.targets.target_spec import TargetSpec

MAX_STEPS = 4000
"""The most goals tried in one attempt before it is given up: bounds the worst case of backtracking."""

FAIL: Any = object()

Goals = Any  # a linked list of goals: (pattern, value, Goals) or None

Handler = Callable[["Machine", Any, Any, Goals], Goals]
"""Handles a goal; returns the goals that remain, or `FAIL`."""


class Machine(Captures):
    """One attempt to match one value; goals are dispatched to `handlers` by the class of their pattern.

    Attributes:
        pending: Axes whose size is not decided yet (see `ortfuse.rewrite.pattern.unify_dims`).
        memo: The node (for alternatives and chains, the value) that each shared part of the pattern is bound to, by its id.
        inner: The nodes matched so far in bodies of these.
        bodies: The graphs of bodies that are being matched.
        entered: The outermost nodes of chains being matched, whose other nodes are known only once all parts are placed.
        moves: The nodes that only move data for a `rearrange`; they do not count as progress.
        absent: The names in `bindings` of optional parts that are absent.
        lenient: Whether intermediate values may be used elsewhere: to see what else is in the way where that is.
    """

    def __init__(
        self,
        matcher: CompiledPattern,
        facts: Facts,
        allow_extra: bool,
        quirks: frozenset[KnownBug],
        ranges: Ranges | None = None,
        lenient: bool = False,
        target: TargetSpec | None = None,
    ) -> None:
        super().__init__(matcher, facts, quirks, ranges, target)
        self.lenient, self.allow_extra = lenient, allow_extra
        self.pending: dict[Any, Any] = {}
        self.memo: dict[Any, Any] = {}
        self.inner: dict[Any, Any] = {}
        self.bodies: dict[Any, Any] = {}
        self.trail: list[tuple[dict[Any, Any], Any]] = []
        self.stack: list[tuple[int, Iterator[Goals]]] = []
        self.depth, self.named = -1, -1
        self.why: Callable[[], Refusal]
        self.reached: tuple[ir.Node, ...] = ()
        self.whole = False
        self.entered: dict[Any, Any] = {}
        self.moves: dict[Any, Any] = {}
        self.absent: dict[Any, Any] = {}
        self.graph: Any = None

    def run(
        self,
        root: ir.Value,
        handlers: Mapping[type, Handler],
        settle: Callable[[Machine], bool],
        dependence: Callable[[Machine], Refusal | None],
    ) -> Match | Miss:
        """Match `root`.

        Args:
            root: The value to match.
            handlers: What turns a goal into its subgoals, by the class of its pattern.
            settle: Decides the constraints on shapes that were left open.
            dependence: Returns a refusal if one of several roots is computed from another.
        """
        producer = root.producer()
        if producer is None:
            return Miss(0, lambda: refuse("operator", root, found=computed_by(None), needed="a node"))
        self.root, self.graph = root, producer.graph
        goals: Goals = (self.matcher.pattern, root, None)
        steps = 0
        while True:
            if goals is None:
                match = self._accept(settle, dependence)
                if match is not None:
                    return match
                goals = FAIL
            else:
                pattern, value, rest = goals
                goals = handlers[type(pattern)](self, pattern, value, rest)
            if goals is FAIL:
                goals = self._retry()
                if goals is FAIL:
                    return self._miss(self.why, self.whole)
            steps += 1
            if steps > MAX_STEPS:
                return self._miss(lambda: refuse("search_limit", root, found=MAX_STEPS), False)

    def put(self, container: dict[Any, Any], key: Any, value: Any) -> None:
        """Add an entry that backtracking removes again."""
        container[key] = value
        self.trail.append((container, key))

    def take(self, node: ir.Node, may_stay: bool) -> None:
        """Count a node as matched; `may_stay`: although it may be used elsewhere."""
        found = self.inner if node.graph in self.bodies else self.nodes
        if node not in found:
            self.put(found, node, may_stay)

    def is_reached(self, graph: Any) -> bool:
        """Whether nodes of a graph can be matched: it is that of the root, or a body in it."""
        return graph is self.graph or graph in self.bodies

    def bind(self, name: str, value: Any) -> bool:
        """Capture `value` as `name`; false if `name` has already captured a different value."""
        if name in self.bindings:
            known = self.bindings[name]
            return known is value or (not isinstance(value, ir.Value) and known == value)
        self.put(self.bindings, name, value)
        return True

    def fail(self, reason: Callable[[], Refusal], whole: bool = False) -> Goals:
        """Record why matching fails here, unless it got further before; with `whole`, the entire pattern has matched.

        Further means more nodes matched, not counting those that only move data; or as many, and more captured.
        """
        progress = len(self.nodes) + len(self.inner) + len(self.entered) - len(self.moves)
        named = len(self.bindings) - len(self.absent)
        if whole == self.whole:
            further = progress > self.depth or (progress == self.depth and named > self.named)
        else:
            further = whole
        if further:
            self.whole, self.depth, self.named, self.why = whole, progress, named, reason
            self.reached = (*self.nodes, *self.inner, *self.entered)
        return FAIL

    def choose(self, alternatives: Iterator[Goals]) -> Goals:
        """Continue with the first alternative, and with the next ones if that fails."""
        self.stack.append((len(self.trail), alternatives))
        return self._retry()

    def undo(self, mark: int) -> None:
        """Undo all entries made since the trail had length `mark`."""
        while len(self.trail) > mark:
            container, key = self.trail.pop()
            del container[key]

    def _retry(self) -> Goals:
        while self.stack:
            mark, alternatives = self.stack[-1]
            self.undo(mark)
            goals = next(alternatives, FAIL)
            if goals is not FAIL:
                return goals
            self.stack.pop()
        return FAIL

    def _miss(self, why: Callable[[], Refusal], whole: bool) -> Miss:
        reached = tuple(dict.fromkeys(self.reached))
        return Miss(len(reached), why, reached, whole)

    def _accept(
        self, settle: Callable[[Machine], bool], dependence: Callable[[Machine], Refusal | None]
    ) -> Match | None:
        if self.pending and not settle(self):
            return None
        refusal = dependence(self)
        if refusal is None and not self.lenient:
            refusal = self._needed_elsewhere()
        if refusal is None:
            match = Match(self.root, self)
            refusal = next((no for guard in self.matcher.guards if (no := _asked(guard, match)) is not None), None)
            if refusal is None:
                return match
        self.fail(said(refusal), whole=True)
        return None

    def _needed_elsewhere(self) -> Refusal | None:
        """A refusal if an intermediate value is needed by something outside the match."""
        emitted = {id(self.bindings.get(label)) for label in self.matcher.emitted} | set(map(id, self.roots.values()))
        for node, may_stay in self.nodes.items():
            for output in () if may_stay else node.outputs:
                if output is self.root or id(output) in emitted:
                    continue
                if output.is_graph_output():
                    return refuse("graph_output", output)
                for use in output.uses():
                    if use.node not in self.nodes and use.node not in self.inner:
                        return refuse("used_elsewhere", output, found=use.node)
        return None


def _asked(guard: Guard, match: Match) -> Refusal | None:
    """The answer of a guard.

    Raises:
        RuleError: The answer is neither a refusal nor `None`.
    """
    answer = guard(match)
    if answer is not None and not isinstance(answer, Refusal):
        name = getattr(guard, "__qualname__", repr(guard))
        raise RuleError(
            f"the guard {name} answers {answer!r}: return None where the rule may be applied, and elsewhere a refusal such as "
            f"match.refuse('value', 'name', 'what is needed')"
        )
    return answer


def computed_by(node: ir.Node | None) -> str:
    """The producer of a value, in words."""
    return "an input or constant" if node is None else words(node)


def said(refusal: Refusal) -> Callable[[], Refusal]:
    """Wrap a refusal that has already been built."""
    return lambda: refusal


def unlike(name: str, value: ir.Value | None, m: Machine) -> Callable[[], Refusal]:
    """A refusal because a value differs from the one captured under the same name (or the number, for captured numbers)."""
    known = m.bindings.get(name)
    return lambda: refuse("not_same", Subject.of(value, name), needed=known)


def bind_absent(m: Machine, pattern: Pattern) -> None:
    """Bind the names of an absent part to `None`."""
    for name in capture_names(pattern):
        if name not in m.bindings:
            m.put(m.bindings, name, None)
            m.put(m.absent, name, True)
