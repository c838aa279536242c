"""Find the quantisable sites of a model and the legal schemes of each, and apply chosen schemes.

Products in another form than MatMul and Add are brought to that form first, where a scheme is chosen (the pass
`precision.canonicalize_matmul`).

A scheme is a lossy rule (`ortfuse.rewrite.Exactness.LOSSY`). Its pattern calls the activation `x`, the weight `weight`
and the bias `bias`. A site is called by the name of the value that it computes. Sites inside loops, branches and
functions are left alone: their values cannot be observed from outside.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import PrecisionError
from ortfuse.ir.dims import DimLike
from ortfuse.ir.edit import Edit
from ortfuse.ir.nn_module_of_node import common_module, module_of
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.selection import EVERYTHING, Selected
from ortfuse.pipeline import load_catalogue
from ortfuse.quantization.calibration import Calibration
from ortfuse.quantization.insert_intermediate_qdq import IntegersBetween
from ortfuse.quantization.scheme_families import is_qdq
from ortfuse.quantization.shared_ranges import method_of, ranges_of
from ortfuse.quantization.unquantized_weights import weights_left
from ortfuse.rewrite import Exactness, FirstLegal, Log, Rewriter, Rule
from ortfuse.rewrite.pattern import Match
from ortfuse.targets import Target, installed
from ortfuse.transforms import CommonSubexpressionElimination, Context, DeadCodeElimination, Finalize, Pass, RulePass

SPELLING = "precision.canonicalize_matmul"
"""The pass whose rules spell products as schemes want them."""

TIDY = "precision.cleanup"
"""The pass whose rules remove what schemes leave between them."""


@dataclass(frozen=True)
class Site:
    """A place that can be computed in lower precision.

    Attributes:
        name: The name of the value that it computes, in the model in float32.
        operator: The operator that it consists of, such as `MatMul`.
        activations: The names of the values that it takes from the rest of the model; the first is what it quantises.
        weight: The name of the weight.
        bias: The name of what is added; empty if there is nothing.
        shape: The shape of the first activation; `None` if its rank is not known.
        weight_shape: The shape of the weight.
        weight_bytes: The bytes of the weight.
        schemes: The names of the lossy rules that can be applied here.
        refused: For each of the other lossy rules that fit in part why it cannot.
        module: The path of the module of the original network that it belongs to; empty if that is not known.
    """

    name: str
    operator: str
    activations: tuple[str, ...]
    weight: str
    bias: str
    shape: tuple[DimLike, ...] | None
    weight_shape: tuple[int, ...]
    weight_bytes: int
    schemes: tuple[str, ...]
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    module: str = ""


def quantization_rules(patterns: Iterable[str | Path | Rule] = (), *, qdq: bool = False) -> dict[str, Rule]:
    """All lossy rules for weights by name: those that come with ortfuse, those of installed packages, and those in `patterns`.

    Args:
        patterns: Files of rules, and rules.
        qdq: Whether those are meant that are spelled with QuantizeLinear and DequantizeLinear for other tools, or the others.
    """
    rules = load_catalogue(patterns).rules()
    return {
        one.name: one
        for one in rules
        if one.exactness is Exactness.LOSSY and "weight" in one.matcher.names and is_qdq(one.name) == qdq
    }


@dataclass(frozen=True)
class Survey:
    """The sites of some schemes in a model.

    Attributes:
        sites: The sites by name, in the order of the graph.
        left: Why other weights have no site, by the name of what is computed with them.
    """

    sites: Mapping[str, Site]
    left: Mapping[str, str]


def sites(
    model: ir.Model,
    target: Target | None = None,
    calibration: Calibration | None = None,
    rules: Mapping[str, Rule] | None = None,
) -> dict[str, Site]:
    """The sites of a model in float32, by name, in the order of the graph. The model is not changed.

    Args:
        model: The model, best as `ortfuse.optimize` makes it.
        target: What executes the result.
        calibration: The ranges of values; without it, schemes that need them are refused.
        rules: The schemes to look for; by default all.
    """
    return dict(survey(model, target, calibration, rules).sites)


def survey(
    model: ir.Model,
    target: Target | None = None,
    calibration: Calibration | None = None,
    rules: Mapping[str, Rule] | None = None,
    selected: Selected = EVERYTHING,
) -> Survey:
    """The same, and why other weights have no site.

    Args:
        model: The model in float32.
        target: What executes the result.
        calibration: The ranges of values.
        rules: The schemes to look for.
        selected: What may be in lower precision.
    """
    rules = quantization_rules() if rules is None else rules
    copy = model.clone()
    producers = {value.name: node for node in model.graph for value in node.outputs}
    context = Context(copy, Facts(copy), target or installed())
    seen, spelling, log = _Survey(copy.graph, selected), Log(), Log(explain=True)
    _rewriter(context, None, spelling, _Within(copy.graph)).run(_rules_of(SPELLING))
    _rewriter(context, calibration, log, seen).run(rules.values())
    spelled = {event.site: producers[event.site] for event in spelling.events}
    known = {*producers, *(value.name for value in model.graph.inputs)}
    found = {
        name: _site(name, found, log, spelled, known) for name, found in seen.outermost().items() if name in producers
    }
    families = dict.fromkeys(name.partition(".")[0] for name in rules)
    left = weights_left(model, seen.covered(), log, tuple(families))
    return Survey({name: found[name] for name in producers if name in found}, left)


def lowered(
    model: ir.Model,
    choice: Mapping[str, str],
    calibration: Calibration | None = None,
    target: Target | None = None,
    rules: Mapping[str, Rule] | None = None,
    selected: Selected = EVERYTHING,
) -> ir.Model:
    """A copy of a model in which schemes are applied; other sites are as they were.

    Args:
        model: The model in float32.
        choice: The names of schemes by the names of sites.
        calibration: The ranges of values, for schemes that need them.
        target: What executes the result.
        rules: The schemes by name; by default all.
        selected: What may be in lower precision.

    Raises:
        PrecisionError: There is no such site or scheme, or the scheme cannot be applied there.
    """
    known = quantization_rules() if rules is None else rules
    if unknown := sorted({*choice.values()} - {*known}):
        raise PrecisionError(f"no scheme is called {unknown[0]!r}; there are {', '.join(known)}")
    context, log = _applied(model, choice, calibration, target, known, Log())
    done = {(event.site, event.rule) for event in log.events}
    if missing := next((one for one in choice.items() if one not in done), None):
        _, log = _applied(model, choice, calibration, target, known, Log(explain=True))
        site, scheme = missing
        miss = log.misses.get((scheme, site))
        why = f": {miss.refusal.reason}" if miss is not None else ""
        raise PrecisionError(f"{scheme} cannot be applied to {site!r}{why}")
    tidy, passes = RulePass(TIDY, _rules_of(TIDY)), list[Pass]([CommonSubexpressionElimination()])
    if not any(map(is_qdq, choice.values())):  # other tools look for each QuantizeLinear beside its DequantizeLinear
        passes += [] if calibration is None else [tidy, IntegersBetween(calibration.range, selected)]
        passes += [tidy]
    for one in (*passes, DeadCodeElimination(), Finalize()):
        one.run(context)
    return context.model


def _applied(
    model: ir.Model,
    choice: Mapping[str, str],
    calibration: Calibration | None,
    target: Target | None,
    rules: Mapping[str, Rule],
    log: Log,
) -> tuple[Context, Log]:
    """A copy of a model with schemes applied where they were chosen, and what was done."""
    copy = model.clone()
    context, within = Context(copy, Facts(copy), target or installed()), _Within(copy.graph)
    _rewriter(context, None, log, within, lambda rule, root: _is_part_of_one(root, choice)).run(_rules_of(SPELLING))
    schemes = (rules[name] for name in dict.fromkeys(choice.values()))
    made_by = {name: method_of(scheme) for name, scheme in choice.items() if "root" in rules[scheme].test.ranges}
    chosen = _rewriter(
        context, calibration, log, within, lambda rule, root: choice.get(root.name or "") == rule.name, made_by
    )
    chosen.run(schemes)
    return context, log


def _is_part_of_one(root: ir.Value, choice: Mapping[str, str]) -> bool:
    """Whether a value is a chosen site, or what is added to the bias of one."""
    sums = (use.node for use in root.uses() if use.node.op_type == "Add")
    return not {root.name, *(node.outputs[0].name for node in sums)}.isdisjoint(choice)


def _rewriter(
    context: Context,
    calibration: Calibration | None,
    log: Log,
    chooser: FirstLegal,
    where: Callable[[Rule, ir.Value], bool] | None = None,
    made_by: Mapping[str, str] = MappingProxyType({}),
) -> Rewriter:
    ranges = None if calibration is None else ranges_of(context.model.graph, calibration, made_by)
    return Rewriter(context.editor, context.target, log, chooser=chooser, ranges=ranges, where=where)


@functools.cache
def _rules_of(name: str) -> tuple[Rule, ...]:
    """The rules of a pass; asking which packages bring rules along takes longer than lowering a site."""
    return load_catalogue().passes()[name]


class _Within(FirstLegal):
    """Make rewrites in the main graph alone."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph

    def refusal(self, rule: Rule, match: Match) -> Refusal | None:
        """Refuse rewrites in other graphs."""
        return None if match.root.graph is self._graph else refuse("other_graph", match.root, needed="the main graph")


class _Survey(_Within):
    """Refuse each rewrite once it is ready, and remember it.

    If sites are alike, the result of the first is legal for all and is not built again.
    """

    def __init__(self, graph: ir.Graph, selected: Selected) -> None:
        super().__init__(graph)
        self._selected = selected
        self._found: dict[str, dict[str, Match]] = {}
        self._kind: tuple[object, ...] = ()
        self._legal: set[tuple[object, ...]] = set()

    def refusal(self, rule: Rule, match: Match) -> Refusal | None:
        """Only the main graph is looked at, and nothing that is to stay in float32."""
        other = super().refusal(rule, match) or self._kept_one(match)
        self._kind = (rule.name, *_likeness(match))
        return self._remembered(rule, match) if other is None and self._kind in self._legal else other

    def _kept_one(self, match: Match) -> Refusal | None:
        why = self._selected.objection(value.name or "" for node in match.nodes for value in node.outputs)
        return refuse("left_out", match.root, found=why) if why else None

    def objection(self, edit: Edit) -> Refusal | None:
        """Always one."""
        self._legal.add(self._kind)  # as it was before the new nodes used the same values
        return self._remembered(edit.rule, edit.match)

    def _remembered(self, rule: Rule, match: Match) -> Refusal:
        self._found.setdefault(match.root.name or "?", {})[rule.name] = match
        return refuse("left_out", match.root, found="schemes are only looked for")

    def covered(self) -> set[str]:
        """The names of all values that sites compute."""
        matches = (match for found in self._found.values() for match in found.values())
        return {value.name or "" for match in matches for node in match.nodes for value in node.outputs}

    def outermost(self) -> dict[str, dict[str, Match]]:
        """The sites that were found, without those that are only part of a larger one."""
        inner = {
            name
            for name, matches in self._found.items()
            for other in self._found.values()
            if other is not matches and _is_part(_first(matches), _first(other))
        }
        return {name: found for name, found in self._found.items() if name not in inner}


def _likeness(match: Match) -> Iterator[object]:
    """The properties of a match on which support by the target depends: operators, attributes, types and shapes."""
    for node in match.nodes:
        yield node.domain, node.op_type
        yield tuple((name, repr(one.value)) for name, one in sorted(node.attributes.items()))
        for value in (*node.inputs, *node.outputs):
            yield None if value is None else (
                match.facts.dtype(value), str(match.facts.shape(value)), value.is_graph_output(), len(value.uses())
            )  # fmt: skip


def _first(matches: Mapping[str, Match]) -> Match:
    return next(iter(matches.values()))


def _is_part(match: Match, other: Match) -> bool:
    """Whether what one match computes is an intermediate value of the other, used nowhere else."""
    return match.root is not other.root and match.root.producer() in other.nodes and not _is_used_outside(match, other)


def _is_used_outside(match: Match, other: Match) -> bool:
    return match.root.is_graph_output() or any(use.node not in other.nodes for use in match.root.uses())


def _site(
    name: str, found: Mapping[str, Match], log: Log, spelled: Mapping[str, ir.Node], known: Collection[str | None]
) -> Site:
    match = _first(found)
    weight = match["weight"]
    outputs = (value.name or "" for node in match.nodes for value in node.outputs)
    original = next((spelled[output] for output in outputs if output in spelled), None)
    shape = tuple(dim for dim in match.shape("weight") or () if isinstance(dim, int))
    bias = match.get("bias")
    return Site(
        name,
        _operator(match, weight) if original is None else original.op_type,
        _activations(match, known),
        _weight_name(weight, original),
        "" if bias is None else bias.name or "",
        match.shape("x"),
        shape,
        math.prod(shape) * 4,
        tuple(found),
        {rule: miss.refusal for (rule, site), miss in log.misses.items() if site == name and rule not in found},
        _module(match, weight, original),
    )


def _module(match: Match, weight: ir.Value, original: ir.Node | None) -> str:
    """The module of what takes the weight; if that is not known, of all that the site consists of."""
    takes = (
        node for node in (original, *match.nodes) if node is not None and (node is original or weight in node.inputs)
    )
    return next(filter(None, map(module_of, takes)), "") or common_module(map(module_of, match.nodes))


def _activations(match: Match, known: Collection[str | None]) -> tuple[str, ...]:
    """The values that come in, what is quantised first: those of the model, before another spelling gave them axes."""
    inside = {output for node in match.nodes for output in node.outputs}
    used = [value for node in match.nodes for value in node.inputs if value is not None and value not in inside]
    taken = (value for value in (match["x"], *used) if value is match["x"] or not match.facts.is_const(value))
    return tuple(dict.fromkeys(_as_it_was(value, known).name or "" for value in taken))


def _as_it_was(value: ir.Value, known: Collection[str | None]) -> ir.Value:
    node = value.producer()
    if value.name in known or node is None or node.op_type != "Unsqueeze" or node.inputs[0] is None:
        return value
    return _as_it_was(node.inputs[0], known)


def _weight_name(weight: ir.Value, original: ir.Node | None) -> str:
    """The name of the weight in the model as it is."""
    value = None if original is None else original.inputs[1]
    turned = None if value is None else value.producer()
    value = value if turned is None else turned.inputs[0]
    return (weight if value is None else value).name or ""


def _operator(match: Match, weight: ir.Value) -> str:
    """The operator that the weight is for."""
    users = (node.op_type for node in match.nodes if weight in node.inputs)
    return next(users, match.nodes[0].op_type)


def names_to_observe(found: Iterable[Site]) -> tuple[str, ...]:
    """The values whose ranges schemes may ask for: what goes into the sites, and what comes out."""
    return tuple(dict.fromkeys(name for site in found for name in (*site.activations, site.name)))
