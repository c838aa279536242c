"""Facts about each value of a model (element type, shape, constants), kept valid and precise while the graph is edited.

For each value: its element type, its symbolic shape, the symbolic integers inside small integer tensors, and its value if
it is constant; on request, also the range of its elements. Facts hold in every run of the model that succeeds and whose inputs
honour the declared shapes; anything that cannot be proved is not a fact:

- A dimension about which nothing is known is a fresh symbol of its own (``?0``, ``?1``, ...), never a guess.
- The declared shapes of the model's inputs are a contract, names of dimensions included
  (`ortfuse.analysis.declared_input_shapes`); those of all other values are claims that the runtime does not check, and
  say nothing. Declared element types, which it does check, supply those that inference does not find.
- Sizes of inputs that have to agree for a run to succeed are the same one (`ortfuse.analysis.equal_sizes`).
- An initializer that is also a graph input (from IR version 4 on) is a default, not a constant.

Bodies of If, Loop and Scan and of model functions are covered: facts inside a loop body hold in every iteration, facts
inside a function body at every call.

Taken on trust: sizes that are computed in float32 or with 32 bits are not so large that they are rounded or wrap around
(see `ortfuse.analysis.transfer.symbolic_element_arithmetic.fitting`); and no empty tensor is reshaped to a target of
which two elements happen to be 0, or one beside a -1 (see `ortfuse.analysis.operators.reshape_and_transpose`). For
empty tensors facts follow ONNX even where the runtime does not (its reductions over the last axis of an empty tensor
keep that axis).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis import operators as _operators  # noqa: F401 - fills the registry
from ortfuse.analysis.combine_facts_of_same_value import refined, renamed, renamed_sizes
from ortfuse.analysis.equal_sizes import agreeing_sizes
from ortfuse.analysis.index_maps import IndexMap, IndexMapOf
from ortfuse.analysis.index_maps.index_map_query import values_between
from ortfuse.analysis.predict_runtime_inferred_shapes import Inferred
from ortfuse.analysis.propagation import Analysis
from ortfuse.analysis.ranges.last_axis_repeats_halves_or_pairs import Repeats
from ortfuse.analysis.ranges.queries import Assumption, FillOf, Question, RangeOf, Values
from ortfuse.analysis.ranges.range import Range
from ortfuse.analysis.ranges.vector_norms import NormOf
from ortfuse.analysis.transfer.value_fact import INTEGERS, Fact, IntTensor, Shape, static_shape
from ortfuse.ir.dims import DimLike
from ortfuse.ir.journal import Assigned, Entry, Flip
from ortfuse.ir.purity import Purity

__all__ = ["Assumption", "Facts", "IntTensor", "Range"]

_MOST_FIXED = 12
"""The most nodes that are looked at to find that a value is the same in every run."""

_RANGE = RangeOf()
_FILL = FillOf(_RANGE)
_INDEX_MAP = IndexMapOf()
_REPEATS = {in_pairs: Repeats(in_pairs) for in_pairs in (False, True)}


class Facts:
    """The facts of a model. Its graphs must be in topological order.

    Values are identified by object, so values of outer scopes are found from within bodies too.
    """

    def __init__(self, model: ir.Model, *, as_declared: bool = False, assumed: Collection[str] = frozenset()) -> None:
        """Compute the facts.

        Args:
            model: the model.
            as_declared: leave the sizes of inputs as they are declared, where the model's operators tell more about them.
            assumed: what the user declares about the model (see `ortfuse.analysis.assumptions`); rules look it up here.
        """
        self.assumed = frozenset(assumed)
        self._model = model
        self._as_declared = as_declared
        self._journal: list[Flip] | None = None
        self._scalars: dict[ir.Value, float | int | bool | None] = {}
        self._analysis = _analysed(model, as_declared=as_declared)
        self._values = Values(self._analysis)
        self._assuming: dict[Assumption, RangeOf] = {}
        self._inferred: Inferred | None = None
        self._purity = Purity(model)

    @property
    def agreeing(self) -> Mapping[str, DimLike]:
        """The size or number that a declared input size equals in every run that succeeds, by name."""
        # Unknown sizes are numbered anew by each analysis.
        return {name: size for name, size in self._analysis.agreeing.items() if not name.startswith("?")}

    def record(self, journal: list[Flip]) -> None:
        """From now on, append to the journal an entry that undoes each change of the facts."""
        self._journal = self._analysis.journal = journal

    def renew(self) -> None:
        """Recompute all facts, after a change of the whole model."""
        if self._journal is not None:
            self._journal += [Assigned(self, "_analysis", self._analysis), Assigned(self, "_values", self._values)]
        self._analysis = _analysed(self._model, self.agreeing, as_declared=self._as_declared)
        self._values = Values(self._analysis)
        self._inferred = None
        self._scalars.clear()
        self._analysis.journal = self._journal

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type; None if it is unknown, if `value` is None, or for sequences, maps and optionals."""
        return None if value is None else self._analysis.fact(value).dtype

    def shape(self, value: ir.Value | None) -> Shape | None:
        """The dimensions; None only if the rank is unknown (unknown dimensions are fresh symbols)."""
        return None if value is None else self._analysis.fact(value).shape

    def inferred_shape(self, value: ir.Value) -> tuple[DimLike | None, ...] | None:
        """The dimensions as the runtime knows them when it optimises, `None` where it does not. Only costs may ask."""
        if self._inferred is None:
            self._inferred = Inferred(self._analysis)
        return self._inferred.shape(value)

    def rank(self, value: ir.Value | None) -> int | None:
        """The number of dimensions, None if it is unknown."""
        return None if value is None else self._analysis.fact(value).rank

    def ints(self, value: ir.Value | None) -> IntTensor | None:
        """The symbolic integers in an integer or bool tensor of at most 64 elements (truth values are 0 and 1)."""
        if value is None:
            return None
        fact = self._analysis.fact(value)
        if fact.dtype not in INTEGERS:
            return None
        elements, shape = fact.integers(), static_shape(fact.shape)
        return None if elements is None or shape is None else IntTensor(elements, shape)

    def is_const(self, value: ir.Value | None) -> bool:
        """Whether `const` returns the value; answering does not read any large tensor.

        True for initializers and Constant nodes, and for small tensors computed from constants alone.
        """
        return value is not None and self._analysis.fact(value).is_constant

    def is_fixed(self, value: ir.Value | None) -> bool:
        """Whether a value is the same in every run: a constant, or computed of constants alone by a few pure nodes.

        The second kind are weights that are stored small, which the runtime decompresses once, when it loads the model.
        """
        pending, left = [value], _MOST_FIXED
        while pending:
            found = pending.pop()
            if found is None or self.is_const(found):
                continue
            producer, left = found.producer(), left - 1
            if producer is None or not producer.inputs or left < 0 or not self._purity.is_pure(producer):
                return False
            pending += producer.inputs
        return value is not None

    def const(self, value: ir.Value | None) -> np.ndarray | None:
        """The value as a constant, None if it is not one. Large constants are read at each call; do not modify the array."""
        if value is None:
            return None
        fact = self._analysis.fact(value)
        array = fact.array()
        if array is None and fact.tensor is not None:
            array = fact.tensor.numpy()
        return array

    def scalar(self, value: ir.Value | None) -> float | int | bool | None:
        """The number in a constant with one element (of any rank), None for everything else."""
        if value is None:
            return None
        try:
            return self._scalars[value]
        except KeyError:
            number = self._scalars[value] = _number(self._analysis.fact(value))
            return number

    def range(self, value: ir.Value, assuming: Assumption | None = None) -> Range | None:
        """The numbers that the elements can be: single ones and an interval, and whether one may be NaN.

        None if nothing is known, or if the value is an empty constant. Computed on demand and kept until an edit affects it.

        Args:
            value: any value.
            assuming: an assumption that is taken for granted although it cannot be proved; the answer is then not a fact.
        """
        found: Range | None = self._values.ask(self._range_question(assuming), value)
        return found

    def first_column(self, value: ir.Value, assuming: Assumption | None = None) -> Range | None:
        """Like `range`, but only for the elements at index 0 of the last axis (for a scalar, its one element)."""
        found: Range | None = self._values.ask(self._range_question(assuming).first_column, value)
        return found

    def last_column(self, value: ir.Value, assuming: Assumption | None = None) -> Range | None:
        """Like `first_column`, but for the elements at the last index of the last axis."""
        found: Range | None = self._values.ask(self._range_question(assuming).last_column, value)
        return found

    def norm(self, value: ir.Value, axis: int = -1) -> float | None:
        """An upper bound of the Euclidean norm of the vectors along an axis (counted from the end); `None` if none is known."""
        found: float | None = self._values.ask(NormOf(axis, None, _RANGE), value)
        return found

    def fill(self, value: ir.Value) -> float | int | None:
        """The one number that all elements equal (truth values are 0 and 1, and 0 may be -0); None if there is none."""
        found: float | int | None = self._values.ask(_FILL, value)
        return found

    def repeats(self, value: ir.Value, in_pairs: bool = False) -> bool:
        """Whether a last axis of even size repeats its numbers: half after half, or (`in_pairs`) each twice in a row."""
        return bool(self._values.ask(_REPEATS[in_pairs], value))

    def index_map(self, value: ir.Value, sources: Collection[ir.Value] = ()) -> IndexMap | None:
        """The index map of a value (`ortfuse.analysis.index_maps`); `None` without a known rank.

        Args:
            value: any value.
            sources: values that are taken as they are, even if it is known from which elements they are made.
        """
        if not sources:
            return self._index_map_of_whole(value)
        between = values_between(sources, value)
        others = None if between is None else (self._index_map_of_whole, between)
        found: IndexMap | None = Values(self._analysis).ask(IndexMapOf(frozenset(sources), others=others), value)
        return found

    def _index_map_of_whole(self, value: ir.Value) -> IndexMap | None:
        found: IndexMap | None = self._values.ask(_INDEX_MAP, value)
        return found

    def answering(self, question: Question) -> Callable[[ir.Value], Any]:
        """Return a function that answers a question about values, and remembers the answers: for use between two edits."""
        values = Values(self._analysis)
        return lambda value: values.ask(question, value)

    def asking(self) -> Callable[[Question, ir.Value], Any]:
        """Return a function that answers questions about values, and remembers all answers: for use between two edits."""
        return Values(self._analysis).ask

    def _range_question(self, assuming: Assumption | None) -> RangeOf:
        if assuming is None:
            return _RANGE
        if assuming not in self._assuming:
            self._assuming[assuming] = RangeOf(assuming)
        return self._assuming[assuming]

    def version(self, node: ir.Node) -> int:
        """The version of its domain that a node is written for: its own if it has one, else the one its scope imports."""
        return node.version if node.version is not None else self._analysis.imports_of(node).get(node.domain, 1)

    def node_added(self, node: ir.Node) -> None:
        """Compute the facts of the outputs of a node that was added to a graph; its inputs already have facts."""
        for value, fact in zip(node.outputs, self._analysis.transfer(node), strict=True):
            self._set(value, fact)
        if self._analysis.renew_functions(node):
            self._values.forget_all()

    def node_removed(self, node: ir.Node) -> None:
        """Drop the facts of the outputs of a node that was removed from its graph."""
        facts = self._analysis.facts
        for value in node.outputs:
            known = facts.pop(value, None)
            self._scalars.pop(value, None)
            self._values.forget_one(value)
            if self._journal is not None and known is not None:
                self._journal.append(Entry(facts, value, known, self._scalars))

    def type_changed(self, value: ir.Value) -> None:
        """Take over what is new in the declared type and shape of a value, after they have changed."""
        node, facts = value.producer(), self._analysis.facts
        if node is None:
            known = facts.pop(value, None)
            self._scalars.pop(value, None)
            self._values.forget_all()
            if self._journal is not None and known is not None:
                self._journal += [Entry(facts, value, known, self._scalars), self._values.forget_all]
            self._propagate(value)
        elif ((fact := self._analysis.fact(value)).dtype is None or fact.shape is None) and self._refine(node):
            self._propagate(value)

    def value_replaced(self, old: ir.Value, new: ir.Value) -> None:
        """Note that the users of `old` now use `new`, which has the same value in every run.

        Facts about either then hold for `new`, and are propagated to its users. Facts only
        become more precise, so this terminates.
        """
        if self._journal is not None:
            # Cached answers that rest on this value must be dropped with it.
            self._journal.append(self._values.forget_all)
        if self._inferred is not None and not self._inferred.holds(old, new):
            self._inferred = None
        before_old, before_new = self._analysis.fact(old), self._analysis.fact(new)
        if before_old.is_constant and before_new.is_constant:
            # Equal constants tell nothing new, and one that many nodes share has many dependents. Maps name the one that goes.
            self._values.forget_answers(_INDEX_MAP)
            return
        self._values.forget(new, self._dependents)
        merged = refined(before_new, before_old)
        if merged is not before_new:
            self._set(new, merged)
        if refined(before_old, merged) is not before_old or merged is not before_new:
            self._propagate(new)
        if sizes := renamed_sizes(before_old.shape, merged.shape):
            self._rename(new, sizes)

    def _rename(self, value: ir.Value, sizes: Mapping[str, DimLike]) -> None:
        """Let the facts of whatever is computed from a value name unknown sizes as that value does.

        The results of nodes with bodies are not told the names of unknown sizes of the bodies.
        """
        waiting, seen = [value], {value}
        while waiting:
            users = dict.fromkeys(use.node for use in waiting.pop().uses() if use.node.graph is not None)
            for output in (output for node in users for output in node.outputs if output not in seen):
                known = self._analysis.fact(output)
                fact = renamed(known, sizes)
                if fact is not known:
                    self._set(output, fact)
                    waiting.append(output)
                    seen.add(output)

    def _propagate(self, value: ir.Value) -> None:
        """Recompute whatever depends on a value whose fact has become more precise."""
        queue = deque(self._dependents(value))
        waiting = set(queue)
        while queue:
            node = queue.popleft()
            waiting.discard(node)
            for output in self._refine(node):
                found = [user for user in self._dependents(output) if user not in waiting]
                queue.extend(found)
                waiting.update(found)

    def _refine(self, node: ir.Node) -> list[ir.Value]:
        """Recompute the facts of the outputs of a node; returns the outputs whose facts have become more precise."""
        found = []
        for output, fact in zip(node.outputs, self._analysis.transfer(node), strict=True):
            known = self._analysis.fact(output)
            better = refined(known, fact)
            if better is not known:
                self._set(output, better)
                found.append(output)
        return found

    def _dependents(self, value: ir.Value) -> list[ir.Node]:
        """The nodes that use a value, and the node that has the value as a result of its body."""
        found = dict.fromkeys(usage.node for usage in value.uses() if usage.node.graph is not None)
        owner = self._analysis.owner(value.graph) if value.is_graph_output() else None
        return [*found] if owner is None else [*found, owner]

    def _set(self, value: ir.Value, fact: Fact) -> None:
        facts = self._analysis.facts
        if self._journal is not None:
            known = facts.get(value)
            self._journal.append(Entry(facts, value, known, self._scalars))
            if known is not None:
                # Answers that rest on the new fact must not outlive it.
                self._journal.append(self._values.forget_all)
        facts[value] = fact
        self._scalars.pop(value, None)
        self._values.forget(value, self._dependents)


def _analysed(model: ir.Model, agreeing: Mapping[str, DimLike] | None = None, *, as_declared: bool = False) -> Analysis:
    analysis = Analysis(model, agreeing)
    analysis.run_model()
    while not as_declared and (found := agreeing_sizes(model.graph, analysis.fact)):
        analysis.run_with(found)
    analysis.refining = True
    return analysis


def _number(fact: Fact) -> float | int | bool | None:
    if fact.size != 1:
        return None
    array = fact.array()
    if array is None or array.dtype.kind in "OSUc":
        return None  # text and complex numbers
    number: float | int | bool = array.reshape(-1)[0].item()
    return number
