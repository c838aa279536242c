"""Forward analysis: run transfer functions over the graphs of a model. Use it through `ortfuse.analysis.facts`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count

import onnx_ir as ir

from ortfuse.analysis.declared_input_shapes import bounded_sizes, declared_shape, names_of_sizes
from ortfuse.analysis.equal_sizes import with_sizes
from ortfuse.analysis.transfer.evaluate_small_tensors import EVALUATIONS, evaluate
from ortfuse.analysis.transfer.onnx_shape_inference import infer
from ortfuse.analysis.transfer.transfer_function_registry import TRANSFERS, Op, UnknownError
from ortfuse.analysis.transfer.value_fact import NOTHING, UNKNOWN, Element, Elements, Fact, fact_of_tensor, static_size
from ortfuse.ir.dims import Dim, DimLike, fresh, substituted, symbols
from ortfuse.ir.journal import Entry, Flip
from ortfuse.ir.walk import nodes_within

_MAX_DIM_SIZE = 64
"""A formula larger than this is replaced by a fresh symbol, which keeps the analysis linear."""
_LARGEST = 2**64 - 1
"""The largest integer that a tensor can hold."""
_DEEPEST_CALL = 32
"""Nested calls are followed down to this depth; the results of deeper ones count as unknown."""
_MOST_SIGNATURES = 64
"""A function is analysed for at most this many combinations of arguments: nested calls can multiply them exponentially."""
_OVERRIDABLE_SINCE = 4
"""The IR version since which an initializer that is also a graph input is only a default."""
_NOT_KNOWN = (UnknownError, ArithmeticError, LookupError, ValueError, TypeError)
"""The errors of a transfer function that needs something unknown, or whose node breaks its operator's rules."""

Signature = tuple[tuple[object, ...], ...]


class Analysis:
    """The facts of a model, and the code that computes them.

    Attributes:
        refining: Set while existing facts are being improved rather than computed anew: bodies are then not run again, and
            results are merged with what is already known.
        agreeing: What symbols of the inputs of the main graph equal in every run that succeeds (see
        `ortfuse.analysis.equal_sizes`).
    """

    def __init__(self, model: ir.Model, agreeing: Mapping[str, DimLike] | None = None) -> None:
        self.model = model
        self.agreeing: dict[str, DimLike] = dict(agreeing or {})
        self.facts: dict[ir.Value, Fact] = {}
        self.refining = False
        self._numbers = count()
        self._born: dict[str, ir.Graph | None] = {}
        self._owners: dict[ir.Graph, ir.Node] = {}
        self._imports: dict[ir.Graph, Mapping[str, int]] = {model.graph: model.graph.opset_imports}
        self._functions = model.functions
        self._names = names_of_sizes(model.graph.inputs)
        self._bounded = bounded_sizes(model)
        self._bodies = {function.graph for function in model.functions.values()}
        self._sites: dict[ir.OperatorIdentifier, dict[Signature, list[Fact]]] = {}
        self._sites_grew = False
        self._calls: dict[ir.OperatorIdentifier, dict[Signature, tuple[Fact, ...]]] = {}
        self._calling: list[ir.OperatorIdentifier] = []
        self.journal: list[Flip] | None = None

    # Reading.

    def fact(self, value: ir.Value) -> Fact:
        """The fact of a value; for an initializer or a value without one yet, it is made on first use."""
        found = self.facts.get(value)
        if found is None:
            found = self.facts[value] = self._leaf(value)
        return found

    def owner(self, graph: ir.Graph | None) -> ir.Node | None:
        """The node that has this graph as a body."""
        return None if graph is None else self._owners.get(graph)

    # Running.

    def run_model(self) -> None:
        """Compute the facts of the whole model."""
        for function in self._functions.values():
            self._imports[function.graph] = function.opset_imports
        self.run(self.model.graph)
        self._run_functions()

    def run_with(self, agreeing: Mapping[str, DimLike]) -> None:
        """Compute the facts of the whole model once more, with what else symbols of the inputs are known to equal."""
        self.agreeing = {name: substituted(size, agreeing) for name, size in self.agreeing.items()} | dict(agreeing)
        for value in self.model.graph.inputs:
            self.facts[value] = self._agreed(self.fact(value))
        self._sites.clear()
        self._calls.clear()
        self.run_model()

    def renew_functions(self, node: ir.Node) -> bool:
        """Recompute the bodies of the model functions if the node, which was just added, is a call unlike all others.

        The arguments of such a call may invalidate the facts of the bodies.

        Returns:
            Whether they were recomputed.
        """
        renewed = self._sites_grew and node.op_identifier() in self._functions
        if renewed:
            self.refining = False
            self._run_functions()
            self.refining = True
        return renewed

    def run(self, nodes: Iterable[ir.Node]) -> None:
        """Compute the facts of all outputs of the nodes, which must be in topological order."""
        facts = self.facts
        journal = None if self._calling else self.journal
        imports: Mapping[str, int] | None = None
        for node in nodes:
            if imports is None:
                imports = self.imports_of(node)
            for value, fact in zip(node.outputs, self.transfer(node, imports), strict=False):
                if journal is not None:
                    journal.append(Entry(facts, value, facts.get(value)))
                facts[value] = fact

    def transfer(self, node: ir.Node, imports: Mapping[str, int] | None = None) -> list[Fact]:
        """Compute the facts of a node's outputs from those of its inputs."""
        version = node.version
        if version is None:
            version = (self.imports_of(node) if imports is None else imports).get(node.domain, 1)
        get = self.facts.get
        inputs = [None if value is None else get(value) or self.fact(value) for value in node.inputs]
        found = self.apply(Op(node, version, inputs, self))
        outputs = node.outputs
        if len(outputs) == 1:
            return [self._complete(outputs[0], found[0] if found else NOTHING)]
        given = len(found)
        return [self._complete(v, found[index] if index < given else NOTHING) for index, v in enumerate(outputs)]

    def apply(self, op: Op) -> tuple[Fact, ...]:
        """The facts of a node's outputs from the given ones of its inputs, with what is unknown left open."""
        node = op.node
        domain, op_type = node.domain, node.op_type
        if self._functions:
            function = self._functions.get(node.op_identifier())
            if function is not None and function.identifier() not in self._calling:  # ONNX forbids recursion
                return self._call(op, function)
        apply = TRANSFERS.get((domain, op_type))
        if apply is not None:
            try:
                found = apply(op)
                if isinstance(found, Fact):
                    found = (found,)
                return evaluate(op, found) if (domain, op_type) in EVALUATIONS else found
            except _NOT_KNOWN:
                pass
        try:
            found = infer(op)
        except UnknownError:
            return ()
        # Where a function of ours cannot tell the shape, ONNX may still know the element type.
        return found if apply is None else tuple([Fact(fact.dtype) for fact in found])

    # Filling in what transfer functions leave open.

    def _complete(self, value: ir.Value, fact: Fact) -> Fact:
        """Fill in what is unknown: the declared element type where the runtime enforces it, fresh symbols for dimensions."""
        shape = fact.shape
        dtype = fact.dtype if fact.dtype is not None else self._declared_dtype(value)
        if shape is not None and any(map(_useless, shape)):
            shape = tuple([self._fresh(value.graph) if _useless(dim) else dim for dim in shape])
        elements = fact.known_elements
        if elements is not None:
            elements = _bounded(elements) if len(elements) == static_size(shape) else None
        if shape is fact.shape and dtype is fact.dtype and elements is fact.known_elements:
            return fact
        return fact.with_changes(dtype, shape, elements)

    def _declared_dtype(self, value: ir.Value) -> ir.DataType | None:
        """The declared element type; none in functions, where the runtime does not look at it."""
        if not isinstance(value.type, ir.TensorType):
            return None
        graph = value.graph
        while (owner := self.owner(graph)) is not None:
            graph = owner.graph
        return None if isinstance(graph, ir.Graph) and graph in self._bodies else value.dtype

    def _fresh(self, graph: ir.Graph | None) -> Dim:
        dim = fresh(next(self._numbers))
        self._born[str(dim)] = graph
        return dim

    def _leaf(self, value: ir.Value) -> Fact:
        """The fact of a value that no analysed node produces."""
        tensor = value.const_value
        if tensor is not None and value.producer() is None and not self._overridable(value):
            return fact_of_tensor(tensor)
        # The runtime enforces the declared shapes of the model's inputs; all others are claims, and are not used.
        is_input = value.is_graph_input() and value.graph is self.model.graph
        shape = declared_shape(value, self._names, self._bounded) if is_input else None
        return self._complete(value, self._agreed(Fact(self._declared_dtype(value), shape)))

    def _agreed(self, fact: Fact) -> Fact:
        if not self.agreeing or fact.shape is None:
            return fact
        return fact.with_changes(
            fact.dtype, tuple([with_sizes(dim, self.agreeing) for dim in fact.shape]), fact.known_elements
        )

    def _overridable(self, value: ir.Value) -> bool:
        return value.is_graph_input() and (self.model.ir_version or 0) >= _OVERRIDABLE_SINCE

    # For the bodies of control flow (see `ortfuse.analysis.operators.control_flow`).

    def enter(self, graph: ir.Graph, node: ir.Node) -> bool:
        """Register the graph as a body of the node; returns whether it has to be run."""
        known = graph in self._owners
        self._owners[graph] = node
        return not (self.refining and known)

    def assume(self, value: ir.Value, fact: Fact) -> Fact:
        """Set the fact of a body's input, which is known only from the enclosing node."""
        completed = self._complete(value, fact)
        if self.journal is not None and not self._calling:
            self.journal.append(Entry(self.facts, value, self.facts.get(value)))
        self.facts[value] = completed
        return completed

    def outward(self, fact: Fact, graph: ir.Graph | None) -> Fact:
        """The fact as it may be used in `graph`: without the unknown dimensions of the bodies it comes from.

        Those symbols stand for a different number in each iteration or call.
        """
        scopes: set[ir.Graph | None] = {graph}
        while (node := self.owner(graph)) is not None:
            graph = node.graph
            scopes.add(graph)

        def visible(dim: DimLike) -> bool:
            if not isinstance(dim, Dim) or not dim.fresh:
                return True
            return all(self._born[name] in scopes for name in symbols(dim) if name in self._born)

        return _seen_by(fact, visible)

    def imports_of(self, node: ir.Node) -> Mapping[str, int]:
        """The opset imports in force for a node: those of the main graph or function that contains it."""
        graph = node.graph
        while (owner := self.owner(graph)) is not None:
            graph = owner.graph
        found = None if graph is None else self._imports.get(graph)
        return self.model.graph.opset_imports if found is None else found

    # Model functions.

    def call(self, op: Op, function: ir.Function) -> tuple[Fact, ...]:
        """The outputs of an operator that is defined by a function that is not part of the model."""
        self._imports.setdefault(function.graph, function.opset_imports)
        return self._call(op, function)

    def _call(self, op: Op, function: ir.Function) -> tuple[Fact, ...]:
        """The outputs of a call: the body is run on the facts of this call, in a store of its own.

        The facts kept for the body must hold for every call; `_run_functions` computes them from the calls noted here.
        """
        name = function.identifier()
        sources = [op.fact(index) for index in range(len(function.inputs))]
        arguments = [Fact(fact.dtype, fact.shape, fact.integers()) for fact in sources]
        signature = tuple([(fact.dtype, fact.shape, fact.known_elements) for fact in arguments])
        if not self._calling and signature not in (sites := self._sites.setdefault(name, {})):
            sites[signature] = arguments
            self._sites_grew = True
        found = self._calls.setdefault(name, {})
        if signature not in found:
            if len(self._calling) >= _DEEPEST_CALL or len(found) >= _MOST_SIGNATURES:
                return ()
            found[signature] = ()  # already counts while nested calls are analysed
            found[signature] = self._run_apart(function, arguments)
        return found[signature]

    def _run_apart(self, function: ir.Function, arguments: list[Fact]) -> tuple[Fact, ...]:
        """Compute the outputs of a function for the given inputs without touching any other facts."""
        saved = self.facts, self.refining
        self.facts, self.refining = {}, False
        self._calling.append(function.identifier())
        try:
            for value, fact in zip(function.inputs, arguments, strict=True):
                self.assume(value, fact)
            self.run(function)
            outputs = [self.fact(value) for value in function.outputs]
        finally:
            self._calling.pop()
            self.facts, self.refining = saved
        given = {name for fact in arguments for dim in fact.shape or () for name in symbols(dim)}
        return tuple([_seen_by(fact, lambda dim: self._only(dim, given)) for fact in outputs])

    def _only(self, dim: DimLike, names: set[str]) -> bool:
        """Whether a dimension mentions no unknown dimensions other than the given ones."""
        if not isinstance(dim, Dim) or not dim.fresh:
            return True
        return all(name in names for name in symbols(dim) if name in self._born)

    def _run_functions(self) -> None:
        """Compute the facts inside the model functions, callers before callees."""
        for function in _callers_first(self._functions):
            sites = list(self._sites.get(function.identifier(), {}).values())
            for value, fact in zip(function.inputs, self._meet(function, sites), strict=True):
                self.assume(value, fact)
            self.run(function)
        self._sites_grew = False

    def _meet(self, function: ir.Function, sites: list[list[Fact]]) -> list[Fact]:
        """The facts of a function's inputs that hold at every call.

        Dimensions that differ between calls become fresh symbols; those that differ in the same way share one.
        """
        if not sites:
            return [NOTHING] * len(function.inputs)
        if len(sites) == 1:
            return sites[0]
        differing: dict[tuple[DimLike, ...], DimLike] = {}
        return [self._meet_one(function, list(facts), differing) for facts in zip(*sites, strict=True)]

    def _meet_one(
        self, function: ir.Function, facts: list[Fact], differing: dict[tuple[DimLike, ...], DimLike]
    ) -> Fact:
        first = facts[0]
        dtype = first.dtype if all(fact.dtype == first.dtype for fact in facts) else None
        if first.shape is None or any(fact.rank != first.rank for fact in facts):
            return Fact(dtype)
        dims: list[DimLike] = []
        for axis in range(len(first.shape)):
            sizes = tuple([fact.shape[axis] for fact in facts if fact.shape is not None])
            if any(size != sizes[0] for size in sizes) and sizes not in differing:
                differing[sizes] = self._fresh(function.graph)
            dims.append(differing.get(sizes, sizes[0]))
        rows = [fact.integers() for fact in facts]
        if tuple(dims) != first.shape or any(row is None for row in rows):
            return Fact(dtype, tuple(dims))
        columns = zip(*[row for row in rows if row is not None], strict=True)
        return Fact(dtype, tuple(dims), tuple([c[0] if all(e == c[0] for e in c) else None for c in columns]))


def _seen_by(fact: Fact, visible: Callable[[DimLike], bool]) -> Fact:
    """The fact without the dimensions and elements that are not visible."""
    if fact.shape is None:
        return Fact(fact.dtype)
    elements = fact.integers()
    if elements is not None:
        elements = tuple([None if e is None or not visible(e) else e for e in elements])
    return Fact(fact.dtype, tuple([dim if visible(dim) else UNKNOWN for dim in fact.shape]), elements)


def _callers_first(functions: dict[ir.OperatorIdentifier, ir.Function]) -> list[ir.Function]:
    """The functions sorted so that each comes after all its callers (recursive ones, which ONNX forbids, come last)."""
    callees = {
        name: {node.op_identifier() for node in nodes_within(function.graph)} & functions.keys()
        for name, function in functions.items()
    }
    callers = Counter(callee for found in callees.values() for callee in found)
    ready = [name for name in functions if not callers[name]]
    order: dict[ir.OperatorIdentifier, None] = {}
    while ready:
        name = ready.pop()
        order[name] = None
        for callee in callees[name]:
            callers[callee] -= 1
            if not callers[callee]:
                ready.append(callee)
    return [functions[name] for name in {**order, **dict.fromkeys(functions)}]


def _useless(dim: DimLike) -> bool:
    """Whether a dimension is impossible, too complicated, or mentions the placeholder for unknown ones."""
    if isinstance(dim, int):
        return not 0 <= dim <= _LARGEST
    return dim.size > _MAX_DIM_SIZE or (dim.fresh and str(UNKNOWN) in symbols(dim))


def _bounded(elements: Elements) -> Elements:
    """The elements without formulas that have grown too large and without numbers that would overflow in the runtime."""
    if any(_overgrown(element) for element in elements):
        return tuple([None if _overgrown(element) else element for element in elements])
    return elements


def _overgrown(element: Element) -> bool:
    if isinstance(element, int):
        return not -_LARGEST <= element <= _LARGEST
    return isinstance(element, Dim) and element.size > _MAX_DIM_SIZE
