"""The matcher: an iterative backtracking machine over a stack of goals, like a small Prolog.

A goal says "this pattern must match this value". Handlers turn one goal into the goals below it, or open a choice (which
operand order, which alternative, which part of a sum) that is resumed when a later goal fails. Bindings are undone by a
trail. Recursion depth is that of the pattern, never that of the graph.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import PatternError
from ortfuse.ir.dims import DimLike
from ortfuse.ir.facts import Facts
from ortfuse.pattern import chain as chains
from ortfuse.pattern.language import (
    COMMUTATIVE_OPS,
    Alt,
    Attr,
    Chain,
    Const,
    Op,
    Opt,
    Out,
    Pattern,
    Product,
    Rest,
    Scalar,
    Sum,
    Var,
)
from ortfuse.pattern.operators import (
    BROADCASTING,
    ORDERED_AXES,
    PARAMETER_INPUTS,
    UNKNOWN,
    attribute_default,
    parameter,
)
from ortfuse.pattern.outline import capture_names, op_depths, operators_below, required_ops

MAX_STEPS = 4000
"""Goals tried in one attempt before it is given up: a bound on the worst case of backtracking."""

_TOLERANCE: dict[ir.DataType | None, float] = {
    ir.DataType.DOUBLE: 1e-12,
    ir.DataType.FLOAT16: 2e-3,
    ir.DataType.BFLOAT16: 1.6e-2,
}
_EPSILON = {
    ir.DataType.DOUBLE: 2.0**-52,
    ir.DataType.FLOAT: 2.0**-23,
    ir.DataType.FLOAT16: 2.0**-10,
    ir.DataType.BFLOAT16: 2.0**-7,
}
_FAIL: Any = object()
_TEXT = "{}"  # formats to the text it is given: `partial(_TEXT.format, text)` is a reason already in words

Goals = Any  # a linked list of goals: (pattern, value, Goals) or None


class Match:
    """One place where a pattern matched: `match["name"]` is what `name` captured (value, number, attribute or None)."""

    def __init__(self, root: ir.Value, machine: _Machine) -> None:
        self.root = root
        self.facts = machine.facts
        self.bindings: dict[str, Any] = {**dict.fromkeys(machine.matcher.names), "root": root, **machine.bindings}
        self.choices: dict[str, int] = dict(machine.choices)
        self.nodes: list[ir.Node] = list(machine.nodes)
        self.residual: list[tuple[int, ir.Value]] = machine.residual
        self.residual_is_product = machine.residual_is_product

    def __getitem__(self, name: str) -> Any:
        try:
            return self.bindings[name]
        except KeyError:
            raise PatternError(f"the pattern captures no {name!r}; it captures {sorted(self.bindings)}") from None

    def get(self, name: str, default: Any = None) -> Any:
        """What `name` captured, or `default`."""
        return self.bindings.get(name, default)

    def choice(self, label: str) -> int:
        """Which option of the alternatives named `label` matched, from 0."""
        return self.choices[label]

    def shape(self, name: str) -> tuple[DimLike, ...] | None:
        """The symbolic shape of a captured value; `None` when its rank is unknown."""
        return self.facts.shape(self[name])

    def rank(self, name: str) -> int | None:
        """The rank of a captured value, or `None`."""
        return self.facts.rank(self[name])

    def dtype(self, name: str) -> ir.DataType | None:
        """The element type of a captured value, or `None`."""
        return self.facts.dtype(self[name])

    def const(self, name: str) -> Any:
        """The captured constant as a numpy array, or `None` if the value is no constant."""
        return self.facts.const(self[name])

    def is_used_elsewhere(self, name: str) -> bool:
        """Whether a captured value is a graph output or used by a node that did not match."""
        value, inside = self[name], set(self.nodes)
        return value.is_graph_output() or any(use.node not in inside for use in value.uses())

    def __repr__(self) -> str:
        names = ", ".join(f"{k}={v.name if isinstance(v, ir.Value) else v}" for k, v in self.bindings.items())
        return f"Match({self.root.name}: {names})"


class Miss:
    """The deepest point a failed attempt reached: which nodes matched, and what stopped it, in words on demand."""

    __slots__ = ("_format", "matched", "nodes", "value")

    def __init__(
        self, matched: int, value: ir.Value | None, reason: Callable[[], str], nodes: tuple[ir.Node, ...] = ()
    ) -> None:
        self.matched, self.value, self._format, self.nodes = matched, value, reason, nodes

    @property
    def reason(self) -> str:
        """What stopped the match, in words."""
        return self._format()


Guard = Callable[[Match], "str | None"]
"""A condition beyond the pattern: `None` when it holds, else the reason why not."""


class Matcher:
    """A pattern made ready to be tried on many values."""

    def __init__(self, pattern: Pattern, guards: tuple[Guard, ...] = (), emitted: tuple[str, ...] = ()) -> None:
        """`emitted`: labels of intermediates that the rule computes anew, so that they may be used elsewhere."""
        self.pattern, self.guards, self.emitted = pattern, guards, emitted
        if pattern.heads is None:
            raise PatternError(f"the pattern {pattern} matches any value; a rule needs an operator at its root")
        self.heads = pattern.heads
        counts: dict[int, int] = {}
        for parent in pattern.walk():
            for child in parent.children():
                counts[id(child)] = counts.get(id(child), 0) + 1
        self.shared = frozenset(key for key, count in counts.items() if count > 1)
        self.required = required_ops(pattern)
        self._below = operators_below(pattern)
        self.names = capture_names(pattern)
        self.depths = op_depths(pattern)

    def may_match(self, node: ir.Node) -> bool:
        """Whether the operators right below `node` are ones the pattern can have there: an early reject."""
        for position, heads in self._below:
            if position is None:
                if not any(_produced_by(value, heads) for value in node.inputs):
                    return False
            elif position >= len(node.inputs) or not _produced_by(node.inputs[position], heads):
                return False
        return True

    def match(self, value: ir.Value, facts: Facts, residual: bool = False) -> Match | Miss:
        """Match `value` as the root; with `residual`, a root sum or product may have parts that the pattern lacks."""
        return _Machine(self, facts, residual).run(value)


def _produced_by(value: ir.Value | None, heads: frozenset[str]) -> bool:
    producer = None if value is None else value.producer()
    return producer is not None and producer.op_type in heads


class _Placement:
    """A chain half matched: the next part to place, the leaves used up, the parts bound so far."""

    __slots__ = ("bound", "chain", "index", "is_root", "tree", "used")

    def __init__(
        self, chain: Chain, tree: chains.Tree, index: int, used: int, bound: tuple[int, ...], is_root: bool
    ) -> None:
        self.chain, self.tree, self.index, self.used, self.bound, self.is_root = (
            chain,
            tree,
            index,
            used,
            bound,
            is_root,
        )


class _Machine:
    def __init__(self, matcher: Matcher, facts: Facts, residual: bool) -> None:
        self.matcher, self.facts, self.allow_residual = matcher, facts, residual
        self.bindings: dict[Any, Any] = {}
        self.choices: dict[Any, Any] = {}
        self.memo: dict[Any, Any] = {}
        self.nodes: dict[Any, Any] = {}
        self.trail: list[tuple[dict[Any, Any], Any]] = []
        self.stack: list[tuple[int, Iterator[Goals]]] = []
        self.residual: list[tuple[int, ir.Value]] = []
        self.residual_is_product = False
        self.depth = -1
        self.why: tuple[ir.Value | None, Callable[[], str]] = (None, lambda: "not tried")
        self.reached: tuple[ir.Node, ...] = ()
        # The outermost nodes of chains under way: the nodes of a chain are known only when all its parts are placed.
        self.entered: dict[Any, Any] = {}
        self.graph: Any = None

    def run(self, root: ir.Value) -> Match | Miss:
        producer = root.producer()
        if producer is None:
            return Miss(0, root, lambda: "an input or constant has no node to rewrite")
        self.root, self.graph = root, producer.graph
        goals: Goals = (self.matcher.pattern, root, None)
        steps = 0
        while True:
            if goals is None:
                match = self._accept()
                if match is not None:
                    return match
                goals = _FAIL
            else:
                pattern, value, rest = goals
                goals = _HANDLERS[type(pattern)](self, pattern, value, rest)
            if goals is _FAIL:
                goals = self._retry()
                if goals is _FAIL:
                    return Miss(len(self.reached), *self.why, self.reached)
            steps += 1
            if steps > MAX_STEPS:
                return Miss(len(self.reached), root, lambda: f"gave up after {MAX_STEPS} steps of search", self.reached)

    def put(self, container: dict[Any, Any], key: Any, value: Any) -> None:
        """Add an entry that backtracking takes out again."""
        container[key] = value
        self.trail.append((container, key))

    def bind(self, name: str, value: Any) -> bool:
        """Capture `value` as `name`; false if `name` already captured another."""
        if name in self.bindings:
            known = self.bindings[name]
            return known is value or (not isinstance(value, ir.Value) and known == value)
        self.put(self.bindings, name, value)
        return True

    def fail(self, value: ir.Value | None, reason: Callable[[], str]) -> Goals:
        """Note why this attempt ends here, if no attempt came further."""
        progress = len(self.nodes) + len(self.entered)
        if progress > self.depth:
            self.depth, self.why, self.reached = progress, (value, reason), tuple({**self.nodes, **self.entered})
        return _FAIL

    def choose(self, alternatives: Iterator[Goals]) -> Goals:
        """Go on with the first alternative, and with the next ones when that fails."""
        self.stack.append((len(self.trail), alternatives))
        return self._retry()

    def _retry(self) -> Goals:
        while self.stack:
            mark, alternatives = self.stack[-1]
            while len(self.trail) > mark:
                container, key = self.trail.pop()
                del container[key]
            goals = next(alternatives, _FAIL)
            if goals is not _FAIL:
                return goals
            self.stack.pop()
        return _FAIL

    def _accept(self) -> Match | None:
        emitted = {id(self.bindings.get(label)) for label in self.matcher.emitted}
        for node, may_stay in self.nodes.items():
            for output in () if may_stay else node.outputs:
                if output is self.root or id(output) in emitted:
                    continue
                if output.is_graph_output():
                    self.fail(
                        output, functools.partial(_TEXT.format, f"{_name(output)} is a graph output, so it must stay")
                    )
                    return None
                for use in output.uses():
                    if use.node not in self.nodes:
                        self.fail(
                            output,
                            functools.partial(_TEXT.format, f"{_name(output)} is also used by {_node(use.node)}"),
                        )
                        return None
        match = Match(self.root, self)
        for guard in self.matcher.guards:
            reason = guard(match)
            if reason is not None:
                self.depth = max(self.depth, len(self.nodes) + len(self.entered) - 1)
                self.fail(self.root, functools.partial(_TEXT.format, reason))
                return None
        return match


def _name(value: ir.Value | None) -> str:
    return "nothing" if value is None else f"'{value.name}'"


def _node(node: ir.Node | None) -> str:
    return "an input or constant" if node is None else f"{node.op_type} '{node.name}'"


def _match_var(m: _Machine, pattern: Var, value: ir.Value | None, rest: Goals) -> Goals:
    if pattern.name in m.bindings:
        if m.bindings[pattern.name] is value:
            return rest
        return m.fail(value, lambda: f"{pattern.name} would have to be {_name(value)} as well")
    if value is None:
        return m.fail(value, lambda: f"{pattern.name} is missing")
    if pattern.constant and not m.facts.is_const(value):
        return m.fail(value, lambda: f"{_name(value)} ({pattern.name}) is not a constant")
    if pattern.check is not None and not pattern.check(value, m.facts):
        return m.fail(
            value, lambda: f"{_name(value)} ({pattern.name}) is not {pattern.text or 'what the rule asks for'}"
        )
    m.put(m.bindings, pattern.name, value)
    return rest


def close(number: float, wanted: float, dtype: ir.DataType | None) -> bool:
    """Whether `number` is how a model in `dtype` writes `wanted`.

    A number that `dtype` holds exactly (0, 1, 0.5, ...) must be that number; another one (√2, 0.044715, ...) may be off by
    what rounding to the type, a product of such constants or a few decimals less can change.
    """
    if number == wanted:
        return True
    if _is_exact(wanted, dtype):
        return False
    return math.isclose(number, wanted, rel_tol=_TOLERANCE.get(dtype, 2e-6), abs_tol=0.0)


@functools.cache
def _is_exact(number: float, dtype: ir.DataType | None) -> bool:
    if dtype is None:
        dtype = ir.DataType.FLOAT
    if not dtype.is_floating_point():
        return True
    return float(np.asarray(number).astype(dtype.numpy())) == number


def _match_const(m: _Machine, pattern: Const, value: ir.Value | None, rest: Goals) -> Goals:
    number = None if value is None else m.facts.scalar(value)
    if number is None or not close(float(number), pattern.value, m.facts.dtype(value)):
        found = "no constant" if number is None else f"{number:.7g}"
        return m.fail(value, lambda: f"{_name(value)} is {found}, not the constant {pattern}")
    return rest


def _match_scalar(m: _Machine, pattern: Scalar, value: ir.Value | None, rest: Goals) -> Goals:
    number = None if value is None else m.facts.scalar(value)
    if number is None or not m.bind(pattern.name, float(number)):
        return m.fail(value, lambda: f"{_name(value)} ({pattern.name}) is not a one-element constant")
    return rest


def _bind_absent(m: _Machine, pattern: Pattern) -> None:
    for name in capture_names(pattern):
        if name not in m.bindings:
            m.put(m.bindings, name, None)


def _match_opt(m: _Machine, pattern: Opt, value: ir.Value | None, rest: Goals) -> Goals:
    if value is None:
        _bind_absent(m, pattern.inner)
        return rest
    return (pattern.inner, value, rest)


def _match_alt(m: _Machine, pattern: Alt, value: ir.Value | None, rest: Goals) -> Goals:
    producer = None if value is None else value.producer()
    op_type = None if producer is None else producer.op_type
    known = m.memo.get(id(pattern)) if id(pattern) in m.matcher.shared else None
    if known is not None:
        return rest if known is value else m.fail(value, lambda: f"{_name(value)} would have to be {_name(known)}")
    fitting = [i for i, option in enumerate(pattern.options) if option.heads is None or op_type in option.heads]
    if not fitting:
        return m.fail(value, lambda: f"{_node(producer)} is none of {pattern}")

    def alternatives() -> Iterator[Goals]:
        for index in fitting:
            if id(pattern) in m.matcher.shared:
                m.put(m.memo, id(pattern), value)
            if pattern.label is not None:
                if not m.bind(pattern.label, value):
                    m.fail(value, lambda: f"{pattern.label} would have to be {_name(value)} as well")
                    return
                m.put(m.choices, pattern.label, index)
            yield (pattern.options[index], value, rest)

    return m.choose(alternatives())


def _match_op(m: _Machine, pattern: Op, value: ir.Value | None, rest: Goals) -> Goals:
    return _match_node(m, pattern, value, 0, rest)


def _match_out(m: _Machine, pattern: Out, value: ir.Value | None, rest: Goals) -> Goals:
    if pattern.label is not None and not m.bind(pattern.label, value):
        return m.fail(value, lambda: f"{pattern.label} would have to be {_name(value)} as well")
    return _match_node(m, pattern.node, value, pattern.index, rest)


def _match_node(m: _Machine, pattern: Op, value: ir.Value | None, index: int, rest: Goals) -> Goals:
    node = None if value is None else value.producer()
    if node is None or node.op_type != pattern.op_type or node.domain != pattern.domain:
        return m.fail(value, lambda: f"{_name(value)} comes from {_node(node)}, not from {pattern.op_type}")
    known = m.memo.get(id(pattern))
    if known is not None:
        return rest if known is value else m.fail(value, lambda: f"{_node(node)} is not the node matched before")
    if node.graph is not m.graph:
        return m.fail(value, lambda: f"{_node(node)} belongs to another graph than the root")
    if value is not None and value.index() != index:
        return m.fail(value, lambda: f"{_name(value)} is output {value.index()} of {_node(node)}, not {index}")
    if id(pattern) in m.matcher.shared:
        m.put(m.memo, id(pattern), value)
    if pattern.label is not None and not m.bind(pattern.label, value):
        return m.fail(value, lambda: f"{pattern.label} would have to be {_name(value)} as well")
    for name, number in pattern.others.items():
        other = node.outputs[number] if number < len(node.outputs) else None
        if not m.bind(name, other):
            return m.fail(value, lambda: f"{_node(node)} has other outputs than the node matched before")
    if not _attributes_match(m, pattern, node):
        return _FAIL
    if node not in m.nodes:
        m.put(m.nodes, node, pattern.may_stay)
    return _input_goals(m, pattern, node, rest)


def _input_goals(m: _Machine, pattern: Op, node: ir.Node, rest: Goals) -> Goals:
    positions = PARAMETER_INPUTS.get(node.op_type)
    taken = {positions[name] for name in pattern.attributes if name in positions} if positions else ()
    values = (
        [value for position, value in enumerate(node.inputs) if position not in taken] if taken else list(node.inputs)
    )
    inputs = pattern.inputs
    if inputs and isinstance(inputs[-1], Rest):
        variadic = inputs[-1]
        if not m.bind(variadic.name, tuple(values[len(inputs) - 1 :])):
            return m.fail(node.outputs[0], lambda: f"the inputs *{variadic.name} differ")
        values, inputs = values[: len(inputs) - 1], inputs[:-1]
    while len(values) > len(inputs) and values[-1] is None:
        values.pop()
    if len(values) > len(inputs):
        return m.fail(node.outputs[0], lambda: f"{_node(node)} has more inputs than {pattern}")
    values += [None] * (len(inputs) - len(values))
    if node.op_type in BROADCASTING and any(type(wanted) in (Const, Scalar) for wanted in inputs):
        reason = _adds_axes(inputs, values, m.facts)
        if reason is not None:
            return m.fail(node.outputs[0], functools.partial(_TEXT.format, f"{_node(node)}: {reason}"))
    if len(inputs) == 2 and node.op_type in COMMUTATIVE_OPS:
        return m.choose(_both_orders(inputs, values, rest))
    goals = rest
    for position in reversed(pattern.order):
        if position >= len(inputs):
            continue
        wanted, value = inputs[position], values[position]
        if wanted is not None:
            goals = (wanted, value, goals)
        elif value is not None:
            return m.fail(
                value,
                functools.partial(
                    _TEXT.format, f"{_node(node)} has an input {_name(value)} that {pattern} does not have"
                ),
            )
    return goals


def _adds_axes(inputs: tuple[Pattern | None, ...], values: list[ir.Value | None], facts: Facts) -> str | None:
    """Why a one-element constant would not act as a plain number here: it has more axes than what it is combined with."""
    present = [value for value in values if value is not None]
    constants = {value for value in present if facts.scalar(value) is not None}
    others = [facts.rank(value) for value in present if value not in constants]
    for value in constants:
        rank = facts.rank(value)
        if rank != 0 and others and (rank is None or not any(other is not None and other >= rank for other in others)):
            return f"the constant {_name(value)} may add axes to the result"
    return None


def _both_orders(inputs: tuple[Pattern | None, ...], values: list[ir.Value | None], rest: Goals) -> Iterator[Goals]:
    first, second = inputs
    yield (first, values[0], (second, values[1], rest))
    if values[0] is not values[1]:
        yield (first, values[1], (second, values[0], rest))


def _attributes_match(m: _Machine, pattern: Op, node: ir.Node) -> bool:
    for name, wanted in pattern.attributes.items():
        found = parameter(node, name, m.facts)
        if found is UNKNOWN:
            m.fail(
                node.outputs[0],
                functools.partial(_TEXT.format, f"{name} of {_node(node)} is not known when the model is compiled"),
            )
            return False
        if isinstance(wanted, Attr):
            fits = (wanted.check is None or wanted.check(found, m.facts)) and m.bind(wanted.name, found)
        else:
            fits = _same_attribute(_from_front(wanted, name, node, m.facts), found)
        if not fits:
            m.fail(
                node.outputs[0],
                functools.partial(_TEXT.format, f"{name} of {_node(node)} is {found}, not {pattern.attributes[name]}"),
            )
            return False
    if pattern.all_attributes is not None:
        return _capture_attributes(m, pattern, pattern.all_attributes.name, node)
    for name, attribute in node.attributes.items():
        if name not in pattern.attributes:
            default = attribute_default(node.domain, node.op_type, m.facts.version(node), name)
            if attribute.is_ref() or not _same_attribute(default, attribute.value):
                m.fail(
                    node.outputs[0],
                    functools.partial(
                        _TEXT.format, f"{_node(node)} has the attribute {name}, which the pattern does not expect"
                    ),
                )
                return False
    return True


def _capture_attributes(m: _Machine, pattern: Op, capture: str, node: ir.Node) -> bool:
    others = {name: attribute for name, attribute in node.attributes.items() if name not in pattern.attributes}
    if any(attribute.is_ref() for attribute in others.values()):
        m.fail(node.outputs[0], lambda: f"an attribute of {_node(node)} is only known where its function is called")
        return False
    return m.bind(capture, {name: attribute.value for name, attribute in others.items()})


def _from_front(wanted: Any, name: str, node: ir.Node, facts: Facts) -> Any:
    if name not in ("axis", "axes"):
        return wanted
    rank = facts.rank(node.inputs[0])
    if rank is None:
        return wanted
    if node.op_type == "Unsqueeze":
        rank += len(wanted)
    if isinstance(wanted, int):
        return wanted + rank if wanted < 0 else wanted
    axes = (axis + rank if axis < 0 else axis for axis in wanted)
    return tuple(axes) if node.op_type in ORDERED_AXES else tuple(sorted(axes))


def _same_attribute(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, float) and isinstance(found, (int, float)):
        return close(found, wanted, ir.DataType.FLOAT)
    if isinstance(wanted, (tuple, list)) and isinstance(found, (tuple, list)):
        return len(wanted) == len(found) and all(_same_attribute(a, b) for a, b in zip(wanted, found, strict=True))
    return bool(wanted == found)


def _match_chain(m: _Machine, pattern: Chain, value: ir.Value | None, rest: Goals) -> Goals:
    if value is None:
        return m.fail(value, lambda: f"{pattern} is missing")
    key = id(pattern)
    if key in m.matcher.shared:
        known = m.memo.get(key)
        if known is not None:
            return (
                rest if known is value else m.fail(value, lambda: f"{_name(value)} is not the {pattern} matched before")
            )
        m.put(m.memo, key, value)
    if pattern.label is not None and not m.bind(pattern.label, value):
        return m.fail(value, lambda: f"{pattern.label} would have to be {_name(value)} as well")
    if value is m.root or value.producer() is None or value.producer().graph is m.graph:  # type: ignore[union-attr]
        tree = chains.flatten(value, isinstance(pattern, Product), m.facts)
    else:
        tree = chains.Tree([chains.Entry(value, 1, -1, mask=1)], 1)
    node = tree.entries[0].node
    if node is not None and node not in m.entered:
        m.put(m.entered, node, True)
    placement = _Placement(pattern, tree, 0, 0, (), value is m.root and pattern is m.matcher.pattern)
    return (placement, value, rest)


def _place(m: _Machine, state: _Placement, value: ir.Value, rest: Goals) -> Goals:
    if state.index == len(state.chain.parts):
        return _finish_chain(m, state, value, rest)
    return m.choose(_placements(m, state, value, rest))


def _placements(m: _Machine, state: _Placement, value: ir.Value, rest: Goals) -> Iterator[Goals]:
    sign, part = state.chain.parts[state.index]
    inner = part.inner if isinstance(part, Opt) else part
    heads = inner.heads
    bound = m.bindings.get(inner.name) if isinstance(inner, Var) else None
    entries = state.tree.entries
    # Deepest first, so that a captured scalar collects every constant of the chain; constants themselves last.
    for index in sorted(range(len(entries) - 1, -1, -1), key=lambda index: entries[index].scalar is not None):
        entry = entries[index]
        if entry.value is None or entry.sign != sign or entry.mask & state.used:
            continue
        if bound is not None and entry.value is not bound:
            continue
        if heads is not None:
            producer = entry.value.producer()
            if producer is None or producer.op_type not in heads:
                continue
        if index == 0 and len(entries) > 1 and isinstance(inner, Chain) and type(inner) is type(state.chain):
            continue  # the whole chain as its own only part: the same question again
        following = _Placement(
            state.chain, state.tree, state.index + 1, state.used | entry.mask, (*state.bound, index), state.is_root
        )
        yield (inner, entry.value, (following, value, rest))
    if isinstance(part, Opt):
        _bind_absent(m, inner)
        yield (
            _Placement(state.chain, state.tree, state.index + 1, state.used, state.bound, state.is_root),
            value,
            rest,
        )
    else:
        m.fail(value, lambda: f"no part of {_name(value)} matches {inner}")


def _finish_chain(m: _Machine, state: _Placement, value: ir.Value, rest: Goals) -> Goals:
    product = isinstance(state.chain, Product)
    covered = [state.tree.entries[index].mask for index in state.bound]
    total = state.chain.neutral
    numbers = 0
    residual: list[tuple[int, ir.Value]] = []
    has_children = {entry.parent for entry in state.tree.entries}
    for index, entry in enumerate(state.tree.entries):
        if index in has_children or entry.mask & state.used:
            continue
        if entry.scalar is not None:
            numbers += 1
            factor = entry.scalar if entry.sign > 0 or not product else (1 / entry.scalar if entry.scalar else math.inf)
            total = total * factor if product else total + entry.sign * factor
        elif entry.value is not None:
            residual.append((entry.sign, entry.value))
    if residual and not (state.is_root and m.allow_residual):
        return m.fail(value, lambda: f"{_name(residual[0][1])} has no place in {state.chain}")
    if not _scalar_fits(m, state.chain, value, total, product, numbers):
        return m.fail(value, lambda: f"the constant in {_name(value)} is {total:.7g}, not {state.chain.scalar:.7g}")
    if state.is_root:
        m.residual, m.residual_is_product = residual, product
    for entry in state.tree.entries:
        if (
            entry.node is not None
            and not any(entry.mask & ~mask == 0 for mask in covered)
            and entry.node not in m.nodes
        ):
            m.put(m.nodes, entry.node, False)
    return rest


def _scalar_fits(m: _Machine, chain: Chain, value: ir.Value, total: float, product: bool, numbers: int) -> bool:
    if chain.capture is not None:
        number = total / chain.scalar if product else total - chain.scalar
        return math.isfinite(number) and m.bind(chain.capture.name, number)
    dtype = m.facts.dtype(value)
    if numbers > 1 and product and dtype is not None:
        # A product of rounded constants: √2 · √2 is 2 within rounding.
        return math.isclose(total, chain.scalar, rel_tol=numbers * _EPSILON.get(dtype, 0.0))
    return close(total, chain.scalar, dtype)


def _reject(m: _Machine, pattern: Pattern, value: ir.Value | None, rest: Goals) -> Goals:
    raise PatternError(f"{type(pattern).__name__} ({pattern}) cannot stand here in a pattern that is matched")


_HANDLERS: dict[type, Callable[[_Machine, Any, Any, Goals], Goals]] = {
    Var: _match_var,
    Const: _match_const,
    Scalar: _match_scalar,
    Opt: _match_opt,
    Alt: _match_alt,
    Op: _match_op,
    Out: _match_out,
    Sum: _match_chain,
    Product: _match_chain,
    _Placement: _place,
    Rest: _reject,
}
