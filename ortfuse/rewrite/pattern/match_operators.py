"""Match patterns of operators, values, constants and alternatives; sums and products are in `match_sums_and_products`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import (
    UNKNOWN,
    axes_from_front,
    parameter,
)
from ortfuse.errors import PatternError
from ortfuse.ir.refusal import Refusal, Subject, refuse
from ortfuse.ir.schemas import attribute_default
from ortfuse.ir.traits import BROADCASTS, COMMUTES, PARAMETER_INPUTS
from ortfuse.rewrite.pattern.backtracking_machine import (
    FAIL,
    Goals,
    Handler,
    Machine,
    bind_absent,
    computed_by,
    said,
    unlike,
)
from ortfuse.rewrite.pattern.compare_constants_up_to_rounding import close
from ortfuse.rewrite.pattern.compiled_pattern import CompiledPattern
from ortfuse.rewrite.pattern.language import (
    Alt,
    Attr,
    Body,
    Const,
    Op,
    Opt,
    Out,
    Part,
    Pattern,
    Product,
    Rest,
    Scalar,
    Sum,
    Var,
)
from ortfuse.rewrite.pattern.match_data_movement import match_part, match_rearrangement
from ortfuse.rewrite.pattern.match_result import Guard, Match, Miss, Ranges, describe
from ortfuse.rewrite.pattern.match_siblings import Sibling, dependence, match_sibling, match_siblings
from ortfuse.rewrite.pattern.match_sums_and_products import Placement, match_chain, place
from ortfuse.rewrite.pattern.rearrangement import Rearrange
from ortfuse.rewrite.pattern.siblings import Siblings
from ortfuse.rewrite.pattern.unify_dims import has_axes, labelled, settle_all
from ortfuse.targets.known_bugs import KnownBug
from ortfuse.targets.target_spec import TargetSpec

__all__ = ["Guard", "Match", "Matcher", "Miss"]


class Matcher(CompiledPattern):
    """A pattern that is compiled for matching against many values."""

    def match(
        self,
        value: ir.Value,
        facts: Facts,
        allow_extra: bool = False,
        quirks: frozenset[KnownBug] = frozenset(),
        ranges: Ranges | None = None,
        *,
        lenient: bool = False,
        target: TargetSpec | None = None,
    ) -> Match | Miss:
        """Match `value` as the root; with `allow_extra`, a root sum or product may have parts that the pattern lacks.

        `quirks` are those of the `target` (`None`: the default one), and `ranges` those that values were seen to have: guards and
        replacements may ask.
        With `lenient`, intermediate values may be used elsewhere; what matches so cannot be replaced.
        """
        machine = Machine(self, facts, allow_extra, quirks, ranges, lenient, target)
        return machine.run(value, _HANDLERS, settle_all, dependence)


def _match_var(m: Machine, pattern: Var, value: ir.Value | None, rest: Goals) -> Goals:
    if pattern.name in m.bindings:
        if m.bindings[pattern.name] is value:
            return rest
        return m.fail(unlike(pattern.name, value, m))
    if value is None:
        return m.fail(_missing(m, pattern.name))
    if value.graph in m.bodies and not m.facts.is_const(value):
        return m.fail(lambda: refuse("other_graph", value, needed=m.root))
    if pattern.constant and not (m.facts.is_fixed(value) if pattern.computed else m.facts.is_const(value)):
        return m.fail(_not_constant(m, pattern.name, value, "a constant"))
    if pattern.check is not None and not pattern.check(value, m.facts):
        return m.fail(_unfit(m, pattern, value))
    if pattern.axes is not None and not has_axes(m, pattern.axes, value, pattern.name):
        return FAIL
    m.put(m.bindings, pattern.name, value)
    return rest


def _match_const(m: Machine, pattern: Const, value: ir.Value | None, rest: Goals) -> Goals:
    number = None if value is None else m.facts.scalar(value)
    if number is None:
        return m.fail(_not_constant(m, "", value, f"the constant {pattern}"))
    if not close(float(number), pattern.value, m.facts.dtype(value)):
        return m.fail(lambda: refuse("value", value, found=float(number), needed=f"the constant {pattern}"))
    return rest


def _match_scalar(m: Machine, pattern: Scalar, value: ir.Value | None, rest: Goals) -> Goals:
    number = None if value is None else m.facts.scalar(value)
    if number is None:
        return m.fail(_not_constant(m, pattern.name, value, "a constant of one element"))
    if not m.bind(pattern.name, float(number)):
        return m.fail(unlike(pattern.name, value, m))
    return rest


def _match_opt(m: Machine, pattern: Opt, value: ir.Value | None, rest: Goals) -> Goals:
    if value is None:
        bind_absent(m, pattern.inner)
        return rest
    return (pattern.inner, value, rest)


def _match_alt(m: Machine, pattern: Alt, value: ir.Value | None, rest: Goals) -> Goals:
    producer = None if value is None else value.producer()
    op_type = None if producer is None else producer.op_type
    known = m.memo.get(id(pattern)) if id(pattern) in m.matcher.shared else None
    if known is not None:
        return rest if known is value else m.fail(lambda: refuse("not_same", value, needed=known))
    fitting = [i for i, option in enumerate(pattern.options) if option.heads is None or op_type in option.heads]
    if not fitting:
        return m.fail(
            lambda: refuse(
                "operator", value, found=computed_by(producer), needed=pattern.heads or frozenset({"a node"})
            )
        )

    def alternatives() -> Iterator[Goals]:
        for index in fitting:
            if id(pattern) in m.matcher.shared:
                m.put(m.memo, id(pattern), value)
            if value is not None and not labelled(m, pattern, value):
                return
            if pattern.label is not None:
                m.put(m.choices, pattern.label, index)
            yield (pattern.options[index], value, rest)

    return m.choose(alternatives())


def _match_op(m: Machine, pattern: Op, value: ir.Value | None, rest: Goals) -> Goals:
    return _match_node(m, pattern, value, 0, rest)


def _match_out(m: Machine, pattern: Out, value: ir.Value | None, rest: Goals) -> Goals:
    if value is not None and not labelled(m, pattern, value):
        return FAIL
    assert isinstance(pattern.node, Op)
    return _match_node(m, pattern.node, value, pattern.index, rest)


def _match_node(m: Machine, pattern: Op, value: ir.Value | None, index: int, rest: Goals) -> Goals:
    node = None if value is None else value.producer()
    if node is None or node.op_type != pattern.op_type or node.domain != pattern.domain:
        return m.fail(lambda: refuse("operator", value, found=computed_by(node), needed=pattern.op_type))
    if value is not None and value.index() != index:
        return m.fail(lambda: refuse("output", value, found=value.index(), needed=index))
    known = m.memo.get(id(pattern))
    if known is not None:
        return rest if known is node else m.fail(lambda: refuse("not_same", node, needed=known))
    if not m.is_reached(node.graph):
        return m.fail(lambda: refuse("other_graph", node, needed=m.root))
    if id(pattern) in m.matcher.shared:
        m.put(m.memo, id(pattern), node)
    if value is not None and not labelled(m, pattern, value):
        return FAIL
    for name, number in pattern.others.items():
        other = node.outputs[number] if number < len(node.outputs) else None
        if not m.bind(name, other):
            return m.fail(unlike(name, other, m))
    if not _attributes_match(m, pattern, node):
        return FAIL
    m.take(node, pattern.may_stay)
    for name, body in pattern.bodies.items():
        rest = _body_goals(m, name, body, node, rest)
        if rest is FAIL:
            return FAIL
    return _input_goals(m, pattern, node, rest)


def _body_goals(m: Machine, name: str, body: Body, node: ir.Node, rest: Goals) -> Goals:
    """The goals that the results of a body set, whose formal inputs are captured."""
    attribute = node.attributes.get(name)
    graph = None if attribute is None or attribute.is_ref() else attribute.as_graph()
    if graph is None or (len(graph.inputs), len(graph.outputs)) != (len(body.inputs), len(body.results)):
        needed = f"with {len(body.inputs)} inputs and {len(body.results)} results"
        return m.fail(lambda: refuse("condition", Subject.attribute(name, node), found="another graph", needed=needed))
    m.put(m.bodies, graph, True)
    for formal, value in zip(body.inputs, graph.inputs, strict=True):
        if not m.bind(formal, value):
            return m.fail(unlike(formal, value, m))
    for result, value in reversed(list(zip(body.results, graph.outputs, strict=True))):
        rest = (result, _behind_identities(value), rest)
    return rest


def _behind_identities(value: ir.Value) -> ir.Value:
    """The value that a result of a body is, behind the Identity that gives it a name of its own."""
    while (node := value.producer()) is not None and node.op_type == "Identity" and not node.domain and node.inputs[0]:
        value = node.inputs[0]
    return value


def _input_goals(m: Machine, pattern: Op, node: ir.Node, rest: Goals) -> Goals:
    positions = PARAMETER_INPUTS.get(node.op_type)
    taken = {positions[name] for name in pattern.attributes if name in positions} if positions else ()
    values = (
        [value for position, value in enumerate(node.inputs) if position not in taken] if taken else list(node.inputs)
    )
    inputs = pattern.inputs
    if inputs and isinstance(inputs[-1], Rest):
        variadic = inputs[-1]
        if not m.bind(variadic.name, tuple(values[len(inputs) - 1 :])):
            return m.fail(lambda: refuse("not_same", node, needed="the node whose inputs were matched before"))
        values, inputs = values[: len(inputs) - 1], inputs[:-1]
    while len(values) > len(inputs) and values[-1] is None:
        values.pop()
    if len(values) > len(inputs):
        return m.fail(lambda: refuse("extra_input", node, found=values[-1], needed=f"the {len(inputs)} of the pattern"))
    values += [None] * (len(inputs) - len(values))
    if node.op_type in BROADCASTS and any(type(wanted) in (Const, Scalar) for wanted in inputs):
        constant = _added_axes(values, m.facts)
        if constant is not None:
            return m.fail(lambda: refuse("axes_added", node, found=constant))
    if len(inputs) == 2 and node.op_type in COMMUTES:
        return m.choose(_both_orders(inputs, values, rest))
    goals = rest
    for position in reversed(pattern.order):
        if position >= len(inputs):
            continue
        wanted, value = inputs[position], values[position]
        if wanted is not None:
            goals = (wanted, value, goals)
        elif value is not None:
            return m.fail(said(refuse("extra_input", node, found=value, needed="those of the pattern")))
    return goals


def _added_axes(values: list[ir.Value | None], facts: Facts) -> ir.Value | None:
    """A one-element constant that may not act as a plain number, since it may have more axes than the other operand."""
    present = [value for value in values if value is not None]
    constants = {value for value in present if facts.scalar(value) is not None}
    others = [facts.rank(value) for value in present if value not in constants]
    for value in constants:
        rank = facts.rank(value)
        if rank != 0 and others and (rank is None or not any(other is not None and other >= rank for other in others)):
            return value
    return None


def _both_orders(inputs: tuple[Pattern | None, ...], values: list[ir.Value | None], rest: Goals) -> Iterator[Goals]:
    first, second = inputs
    yield (first, values[0], (second, values[1], rest))
    if values[0] is not values[1]:
        yield (first, values[1], (second, values[0], rest))


def _attributes_match(m: Machine, pattern: Op, node: ir.Node) -> bool:
    for name, wanted in pattern.attributes.items():
        found = parameter(node, name, m.facts)
        if found is UNKNOWN:
            m.fail(_attribute(node, name))
            return False
        if isinstance(wanted, Attr):
            fits = (wanted.check is None or wanted.check(found, m.facts)) and m.bind(wanted.name, found)
        else:
            axes = name in ("axis", "axes")
            fits = _same_attribute(axes_from_front(node, wanted, m.facts) if axes else wanted, found)
        if not fits:
            m.fail(_attribute(node, name, found, wanted))
            return False
    if pattern.all_attributes is not None:
        return _capture_attributes(m, pattern, pattern.all_attributes.name, node)
    for name, attribute in node.attributes.items():
        if name not in pattern.attributes and name not in pattern.bodies:
            default = attribute_default(node.domain, node.op_type, m.facts.version(node), name)
            if not _is_idle(node, name, m.facts) and (
                attribute.is_ref() or not _same_attribute(default, attribute.value)
            ):
                m.fail(_attribute(node, name, UNKNOWN if attribute.is_ref() else attribute.value, default))
                return False
    return True


def _is_idle(node: ir.Node, name: str, facts: Facts) -> bool:
    """Whether an attribute means nothing here: what is done without axes, where there are some."""
    if name != "noop_with_empty_axes":
        return False
    axes = parameter(node, "axes", facts)
    return isinstance(axes, tuple) and len(axes) > 0


def _capture_attributes(m: Machine, pattern: Op, capture: str, node: ir.Node) -> bool:
    mentioned = {*pattern.attributes, *pattern.bodies}
    others = {name: attribute for name, attribute in node.attributes.items() if name not in mentioned}
    given = next((name for name, attribute in others.items() if attribute.is_ref()), None)
    if given is not None:
        m.fail(_attribute(node, given))
        return False
    return m.bind(capture, {name: attribute.value for name, attribute in others.items()})


def _missing(m: Machine, name: str) -> Callable[[], Refusal]:
    return lambda: refuse("missing_input", Subject("operand", m.root.name or "", capture=name))


def _not_constant(m: Machine, name: str, value: ir.Value | None, needed: str) -> Callable[[], Refusal]:
    if value is None:
        return _missing(m, name or needed)
    return lambda: refuse("not_constant", Subject.of(value, name), found=describe(value, m.facts), needed=needed)


def _unfit(m: Machine, pattern: Var, value: ir.Value) -> Callable[[], Refusal]:
    """A refusal because a value fails the check of a variable, in the words of its declaration."""
    needed = pattern.text or "what the rule asks for"
    return lambda: refuse("condition", Subject.of(value, pattern.name), found=describe(value, m.facts), needed=needed)


def _attribute(node: ir.Node, name: str, found: Any = UNKNOWN, wanted: Any = None) -> Callable[[], Refusal]:
    """A refusal because an attribute is unknown, or not as wanted."""
    capture = wanted.name if isinstance(wanted, Attr) else ""
    if found is UNKNOWN:
        return lambda: refuse("attribute_unknown", Subject.attribute(name, node, capture))
    found = "absent" if found is None else found
    needed = (
        wanted.text or "what the rule asks for" if isinstance(wanted, Attr) else "absent" if wanted is None else wanted
    )
    return lambda: refuse("attribute", Subject.attribute(name, node, capture), found=found, needed=needed)


def _same_attribute(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, float) and isinstance(found, (int, float)):
        return close(found, wanted, ir.DataType.FLOAT)
    if isinstance(wanted, (tuple, list)) and isinstance(found, (tuple, list)):
        return len(wanted) == len(found) and all(_same_attribute(a, b) for a, b in zip(wanted, found, strict=True))
    return bool(wanted == found)


def _reject(m: Machine, pattern: Pattern, value: ir.Value | None, rest: Goals) -> Goals:
    raise PatternError(f"{type(pattern).__name__} ({pattern}) cannot stand here in a pattern that is matched")


_HANDLERS: Mapping[type, Handler] = {
    Var: _match_var,
    Const: _match_const,
    Scalar: _match_scalar,
    Opt: _match_opt,
    Alt: _match_alt,
    Op: _match_op,
    Out: _match_out,
    Sum: match_chain,
    Product: match_chain,
    Placement: place,
    Rearrange: match_rearrangement,
    Part: match_part,
    Rest: _reject,
    Siblings: match_siblings,
    Sibling: match_sibling,
}
