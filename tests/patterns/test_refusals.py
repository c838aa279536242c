"""Every guard of the catalogue says no with a refusal that names what it is about and what would help.

Each guard is asked of an instance of its rule about which other things are said to be known: other shapes, types, numbers
and attributes, one at a time.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np
import onnx_ir as ir
import pytest
from ortfuse.patterns.ort_workarounds import enable_quantized_gemm

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import symbol
from ortfuse.ir.refusal import Code, Refusal
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import RULE_KEY, Rule
from ortfuse.rewrite.pattern import Match, Matcher
from ortfuse.targets import Quirk
from ortfuse.verification.rule_tests.build_instances import Builder, element_type, opsets_for
from ortfuse.verification.rule_tests.spelling_choices import Chooser, Coverage, spellings

RULES = [rule for rules in load_catalogue([]).passes().values() for rule in rules if rule.guards]
SPELLINGS = 6
MOST_SPELLINGS = 40
REFUSED = 2
"""In so many spellings of a rule the answers of a guard are read."""
LARGE = 1500
WINDOWS = (
    {"ceil_mode": 1}, {"mode": "linear"}, {"pads": (1, 1, 1, 1)}, {"pads": (1, 1)}, {"dilations": (9, 9)},
    {"ceil_mode": 1, "count_include_pad": 1},
)  # fmt: skip
"""What else convolutions and pools may be told."""
DTYPES = (None, ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.FLOAT16)
THINGS = (
    None, -2.0, 0.0, 1.0, 0.37, float("nan"), 3e38, 0, 1, 2, 5, (0,), (5,), (2,), (0, 2), (1,), (), "ij->i", "ij->ji", "...i->i",
    "ij,ik->jk", "ij,jk->ijk", "aij,bjk->ik", "ij,jk->ik", "bij,bjk->bik", "i,j->ij", "i,j,k->",
)  # fmt: skip


class OtherFacts:
    """The facts of a model, but of some values another shape, type or content."""

    def __init__(self, facts: Facts, **said: dict[ir.Value, Any]) -> None:
        self._facts, self._said = facts, said

    def _answer(self, question: str, value: ir.Value | None) -> Any:
        said = self._said.get(question, {})
        return said[value] if value in said else getattr(self._facts, question)(value)

    def shape(self, value: ir.Value | None) -> Any:
        return self._answer("shape", value)

    def rank(self, value: ir.Value | None) -> Any:
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def __getattr__(self, question: str) -> Any:
        if question in self._said:
            return lambda value: self._answer(question, value)
        return getattr(self._facts, question)


def instances(rule: Rule) -> Iterator[Match]:
    """What the pattern, without its guards, matches in some spellings of the rule, among them all of other operators."""
    found: list[Match] = []
    seen: set[tuple[str, ...]] = set()
    tried = 0
    matcher = Matcher(rule.pattern, (), tuple(rule.intermediates))
    for number in range(len(rule.test.shape_sets())):
        coverage = Coverage()

        def attempt(chooser: Chooser, number: int = number, coverage: Coverage = coverage) -> bool:
            nonlocal tried
            tried += 1
            dtype = element_type(rule.test.dtypes[0])
            model = Builder(rule, number, dtype, opsets_for(rule)[-1], chooser).instance().model
            coverage.learn(chooser)
            facts = Facts(model)
            for node in reversed(list(model.graph)):
                tries = (matcher.match(output, facts, rule.allow_extra_operands) for output in node.outputs)
                match = next((match for match in tries if isinstance(match, Match)), None)
                if match is not None:
                    operators = tuple(sorted(node.op_type for node in match.nodes))
                    if len(found) < SPELLINGS * (number + 1) or operators not in seen:
                        found.append(match)
                    seen.add(operators)
                    break
            return tried < MOST_SPELLINGS * (number + 1)

        attempt(Chooser())
        spellings(attempt, coverage, SPELLINGS)
    yield from found


def changed(match: Match, **changes: Any) -> Match:
    other = copy.copy(match)
    other.bindings = dict(match.bindings)
    for name, change in changes.items():
        setattr(other, name, change)
    return other


def with_binding(match: Match, name: str, thing: Any) -> Match:
    other = changed(match)
    other.bindings[name] = thing
    return other


def others(match: Match) -> Iterator[Match]:
    """The match, with something else known of one thing that it captured."""
    yield match
    for name, thing in match.bindings.items():
        if isinstance(thing, ir.Value):
            yield from _known_otherwise(match, thing)
            yield from (with_binding(match, name, one) for one in match.bindings.values() if isinstance(one, ir.Value))
            yield from (with_binding(match, name, node.outputs[0]) for node in match.nodes)
            yield from (with_binding(match, name, few) for few in _less_of(match.facts.const(thing)))
        elif isinstance(thing, dict):
            yield from (with_binding(match, name, {**thing, **other}) for other in WINDOWS)
        else:
            yield from (with_binding(match, name, other) for other in THINGS)
    yield changed(match, quirks=frozenset(Quirk))
    for name in match.dims:
        for size in (7919, symbol("other")):
            yield changed(match, dims=match.dims | {name: size})
    for number in (1.0, -1.0):
        with_others = changed(match)
        with_others.bindings |= {name: number for name, thing in match.bindings.items() if isinstance(thing, float)}
        yield with_others


def _less_of(array: Any) -> Iterator[ir.Value]:
    """A constant of a few numbers along each axis."""
    if array is not None and array.ndim > 1:
        yield ir.Value(name="few", const_value=ir.Tensor(array[(slice(3),) * array.ndim]))


def _known_otherwise(match: Match, value: ir.Value) -> Iterator[Match]:
    shape = match.facts.shape(value)
    shapes: list[Any] = [None, (), (7919,)]
    for axis in range(len(shape or ())):
        shapes += [(*shape[:axis], dim, *shape[axis + 1 :]) for dim in (1, 0, 7919, symbol("other"))]  # type: ignore[index]
    shapes += [(1, *shape), shape[1:], shape[:-1], (1,) * len(shape)] if shape else []
    for other in shapes:
        yield changed(match, facts=OtherFacts(match.facts, shape={value: other}))
    for dtype in DTYPES:
        yield changed(match, facts=OtherFacts(match.facts, dtype={value: dtype}))
    array = match.facts.const(value)
    if array is not None and array.dtype.kind == "f":
        for number in (np.nan, 1e30, 0.0, -1.0):
            yield changed(match, facts=OtherFacts(match.facts, const={value: np.full_like(array, number)}))
        yield changed(match, facts=OtherFacts(match.facts, const={value: large(array)}))
    no_constant = {"const": {value: None}, "is_const": {value: False}, "scalar": {value: None}, "ints": {value: None}}
    yield changed(match, facts=OtherFacts(match.facts, **no_constant))
    constant = {"const": {value: np.float32(3.0)}, "is_const": {value: True}, "scalar": {value: 3.0}}
    yield changed(match, facts=OtherFacts(match.facts, **constant))
    yield changed(match, facts=OtherFacts(match.facts, fill={value: 3.0}))


def large(array: Any) -> Any:
    """A constant of as many axes, the first two of which are long."""
    lengths = (LARGE, LARGE) if array.ndim > 1 else (LARGE**2,)
    return np.broadcast_to(array.dtype.type(3), (*lengths, *[1] * (array.ndim - len(lengths)))) if array.ndim else array


def large_and_used(match: Match) -> Iterator[Match]:
    """The match, with a captured constant that is large and has another use."""
    graph = match.nodes[0].graph
    assert graph is not None
    for value in {thing for thing in match.bindings.values() if isinstance(thing, ir.Value)}:
        array = match.facts.const(value)
        if array is not None and array.dtype.kind == "f":
            node = ir.node("Abs", [value])
            graph.append(node)
            node.outputs[0].name = "elsewhere"
            yield changed(match, facts=OtherFacts(match.facts, const={value: large(array)}))
            graph.remove(node, safe=True)


def all_otherwise(match: Match) -> Iterator[Match]:
    """The match, with other numbers in all captured constants at once, also in float16."""
    values = {thing: None for thing in match.bindings.values() if isinstance(thing, ir.Value)}
    arrays = {
        value: array for value in values if (array := match.facts.const(value)) is not None and array.dtype.kind == "f"
    }
    for numbers in ((1e8, 1e8), (1e8, -1e8), (100.0, 100.0)):
        const = {value: np.full_like(array, numbers[place % 2]) for place, (value, array) in enumerate(arrays.items())}
        yield changed(match, facts=OtherFacts(match.facts, const=const))
        yield changed(match, facts=OtherFacts(match.facts, const=const, dtype={match.root: ir.DataType.FLOAT16}))


def used_otherwise(match: Match) -> Iterator[Match]:
    """The match, with the root and its captured intermediates used by more than the instance has."""
    values = {
        thing for thing in match.bindings.values() if isinstance(thing, ir.Value) and thing.producer() is not None
    }
    for value in sorted(values, key=lambda value: value.name or ""):
        graph = value.producer().graph  # type: ignore[union-attr]
        made = [ir.node("MatMul", [value, value])] if not value.uses() else []
        graph.extend(made)
        yield from (with_binding(match, name, (1, 0)) for name in match.bindings if name == "perm" and made)
        for elsewhere in ("Abs", "Floor", "Log", "ReduceMean"):
            made.append(ir.node(elsewhere, [value]))
            graph.append(made[-1])
            made[-1].outputs[0].name = elsewhere
            yield match
        nodes = value.producer()
        if nodes is not None and nodes.op_type in ("BatchNormalization", "MaxPool"):
            nodes.resize_outputs(3 if nodes.op_type == "BatchNormalization" else 2)
            nodes.outputs[1].name = "running"
            yield match
        graph.remove(made, safe=True)  # the next guard is asked about the match as it was


def made_otherwise(match: Match) -> Iterator[Match]:
    """The match, with x a blocked image, an integer that the runtime computes with as it is, or what Softmax or Pad make."""
    x = match.bindings.get("x")
    if not isinstance(x, ir.Value):
        return
    graph = match.nodes[0].graph
    assert graph is not None
    scale = ir.Value(name="scale")
    made = [
        ir.node("MaxPool", [x]),
        ir.node("DequantizeLinear", [x, scale]),
        ir.node("Softmax", [x]),
        ir.node("Pad", [x]),
        ir.node("QuantizeLinear", [match.root, scale]),
    ]
    graph.extend(made)
    shapes = {x: (1, 16, 8, 8), made[0].outputs[0]: (1, 16, 8, 8)}
    facts = OtherFacts(match.facts, shape=shapes, dtype={x: ir.DataType.FLOAT})
    for node in made[:4]:
        node.outputs[0].name = f"{node.op_type} of x"
        yield changed(with_binding(match, "x", node.outputs[0]), facts=facts)
    graph.remove(made, safe=True)


def averaged(match: Match) -> Iterator[Match]:
    """The match, with x the mean of a blocked image, whose axes of size 1 the root leaves out."""
    x, root = match.bindings.get("x"), match.root.producer()
    if not isinstance(x, ir.Value) or root is None or root.inputs[0] is not x:
        return
    graph = root.graph
    assert graph is not None
    image = ir.node("MaxPool", [x]).outputs[0]
    mean = ir.node("ReduceMean", [image], {"axes": [2, 3], "keepdims": 1}).outputs[0]
    made = [node for value in (image, mean) if (node := value.producer()) is not None]
    graph.extend(made)
    image.name, mean.name = "image", "mean"
    root.replace_input_with(0, mean)
    shapes = {image: (1, 16, 8, 8), mean: (1, 16, 1, 1), match.root: (1, 16)}
    facts = OtherFacts(match.facts, shape=shapes, dtype={image: ir.DataType.FLOAT, mean: ir.DataType.FLOAT})
    yield changed(with_binding(match, "x", mean), facts=facts)
    root.replace_input_with(0, x)
    graph.remove(made, safe=True)


def written_by_a_rule(match: Match) -> Iterator[Match]:
    """The match, with a root that another rule has written."""
    node = match.root.producer()
    assert node is not None
    node.metadata_props[RULE_KEY] = "another"
    yield match
    del node.metadata_props[RULE_KEY]


def convolved(match: Match) -> Iterator[Match]:
    """The match, with a root that is convolved, too."""
    graph = match.nodes[0].graph
    assert graph is not None
    node = ir.node("Conv", [match.root])
    graph.append(node)
    yield match
    graph.remove(node, safe=True)


def added_to_another_layer(match: Match) -> Iterator[Match]:
    """The match, with z made by a layer of a larger kernel."""
    graph, x = match.nodes[0].graph, match.bindings.get("x")
    if "z" not in match.bindings or graph is None or not isinstance(x, ir.Value):
        return
    weight = ir.Value(name="large", const_value=ir.Tensor(np.ones((16, 3, 9, 9), np.float32)))
    made = ir.node("Conv", [x, weight], {"strides": [1, 1]})
    graph.append(made)
    facts = OtherFacts(match.facts, const={weight: weight.const_value.numpy()})  # type: ignore[union-attr]
    yield changed(with_binding(match, "z", made.outputs[0]), facts=facts)
    graph.remove(made, safe=True)


def used_elsewhere(match: Match) -> Iterator[Match]:
    """The match, with another value where its root is used."""
    uses, other = list(match.root.uses()), ir.Value(name="elsewhere")
    for use in uses:
        use.node.replace_input_with(use.idx, other)
    yield match
    for use in uses:
        use.node.replace_input_with(use.idx, match.root)


def refusals(guard: Callable[[Match], Any], match: Match) -> Iterator[Any]:
    for variants in (
        others, all_otherwise, used_otherwise, large_and_used, made_otherwise, used_elsewhere, written_by_a_rule,
        convolved, averaged, added_to_another_layer,
    ):  # fmt: skip
        for other in variants(match):
            try:
                answer = guard(other)
            except Exception:
                continue  # together with the rest, this is nothing that the pattern lets through
            if answer is not None:
                yield answer


@pytest.mark.rule_test
@pytest.mark.sample(14)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_guard_refuses_by_subject_and_remedy(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enable_quantized_gemm, "saturates", lambda: True)  # as on a processor without VNNI
    matches = list(instances(rule))
    assert matches
    for guard in rule.guards:
        answers = filter(None, (list(refusals(guard, match)) for match in matches))
        found = [answer for several in itertools.islice(answers, REFUSED) for answer in several]
        assert found, f"{guard.__qualname__} refuses nothing"
        strange = [answer for answer in found if not isinstance(answer, Refusal)]
        assert not strange, f"{guard.__qualname__}: {strange[0]}"
        for refusal in {(one.code, one.reason, one.remedy): one for one in found}.values():
            assert refusal.code in get_args(Code)
            assert refusal.subject.name or refusal.subject.owner, refusal.reason
            assert str(refusal.subject) in refusal.reason or refusal.code in ("left_out", "not_equal")
            assert refusal.remedy
            assert "{" not in refusal.reason + refusal.remedy
            json.dumps(refusal.to_dict())
