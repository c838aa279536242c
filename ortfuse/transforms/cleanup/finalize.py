"""Turn the rewritten graph into a model that can be saved: the last step of every pipeline.

- Functions that define custom operators are added to the model, and those that were kept from the passes put back.
- If rules made nodes that need a newer opset than the model imports, `ortfuse.targets` raises the whole model to it.
- In a model of IR version 3 every initializer must also be an input. Such a model is raised to version 4 if it now has
  initializers that are not inputs. Inputs that were there only for this reason are removed: the runtime never took a
  value for them.
- Opset imports of domains that no node uses any more are dropped, except for the default domain; the main graph keeps those
  that functions use.
- Graphs that a rule left out of topological order are sorted.
- Values without a name get one. A value with the name of one in another graph is renamed: a subgraph must not shadow a value of
  the graph around it, and ONNX's inference of small tensors keeps those of all graphs by name. Names of inputs and outputs stay.
- Values get the declared type and shape that the facts prove. Declarations of the file that the facts do not prove are
  dropped: the runtime plans the reuse of buffers by declared sizes. By default names of sizes are dropped too: the
  plans that they allow cost 5 to 12 % on some models. Other tools can infer them again, and some engines refuse names of
  inner sizes for which the caller sets numbers. `finalize{symbolic=true}` writes all names and short formulas.
- Two kinds of values keep names that their target needs. Added images have those by which the runtime sees that their
  shapes are equal (`find_values_needing_named_sizes`), for targets that leave their blocked layout otherwise. Activations
  of packed tokens have theirs (`ortfuse.ir.named_sizes`) for targets that plan buffers by names.
- Declarations of inputs and outputs of the model and of bodies stay. Values of unknown rank keep what is declared.
  Functions have no declared types and are left alone. In the body of a Loop that may not run nothing is declared anew. If
  there is no iteration, the runtime derives the sizes of stacked results from the body. `finalize{shapes=false}` declares
  no new shape at all: the runtime refuses some nodes only if it knows the shapes of operands.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.analysis.loop_summary.nonempty_sizes import Nonempty
from ortfuse.errors import TargetError
from ortfuse.ir.dims import DimLike
from ortfuse.ir.editor import RULE_KEY, Editor
from ortfuse.ir.named_sizes import with_named_sizes
from ortfuse.ir.traits import NAMES_INPUTS, has
from ortfuse.ir.walk import Scope, nested, nested_nodes, nodes_within, roots, subgraphs
from ortfuse.targets import Quirk, missing_functions, opset_needed, raise_opset
from ortfuse.transforms.context import Context
from ortfuse.transforms.find_values_needing_named_sizes import unlike_sizes

_FREE_INITIALIZERS = 4
"""The first IR version in which initializers need not be inputs."""

_LONGEST_FORMULA = 60
"""The most characters that the formula of a dimension may have to be written into the model."""


@dataclass(frozen=True)
class Finalize:
    """Raise the opset if nodes need it; set imports, order, names and declared types.

    Attributes:
        symbolic: Whether to declare sizes that are not numbers by name or formula, as far as they are known.
        shapes: Whether to declare shapes of values that have none.
    """

    name: ClassVar[str] = "finalize"
    symbolic: bool = False
    shapes: bool = True

    def run(self, context: Context) -> int:
        """Put the model in order; returns the number of corrections."""
        _demand_lowered(context)
        editor, defined = context.editor, _define_functions(context)
        _put_back_functions(context)
        pending = list(_pending(context))
        with editor.change(self.name):
            changes = defined + _raise_ir_version(context, for_opset=bool(pending))
        changes += _raise_opset(context, pending)
        with editor.change(self.name):
            as_declared = _bodies_that_may_not_run(context)
            for scope in context.scopes():
                _clear_versions(scope, editor)
                adds = self.shapes and scope.graph not in as_declared
                changes += _declare_types(scope, context, adds=adds, symbolic=self.symbolic)
            for root in roots(context.model):
                changes += _drop_imports(root, context.model, editor)
                changes += _sort(root, editor)
                changes += _name_values(root, editor)
        return changes


def not_lowered(context: Context) -> ir.Node | None:
    """Return a node that a rule made for the target to be lowered, and that is there still; `None` if there is none."""
    made = (
        node
        for scope in (context.scopes() if context.target.lowers else ())
        for node in scope.graph
        if not node.domain and context.target.is_lowered(node.op_type) and RULE_KEY in node.metadata_props
    )
    return next(made, None)


def _demand_lowered(context: Context) -> None:
    """Raise an error if a rule made an operator for the target to be lowered, and it is there still."""
    node = not_lowered(context)
    if node is not None:
        raise TargetError(f"no rule lowers {node.op_type} '{node.name}' for {context.target.table.runtime}")


def _define_functions(context: Context) -> int:
    """Add the functions that define operators without a kernel on the target; returns how many."""
    missing = missing_functions(context.model)
    if missing:
        with context.editor.change(Finalize.name):
            context.editor.add_functions(missing)
            context.editor.renew_facts()
    return len(missing)


def _put_back_functions(context: Context) -> None:
    """Put functions back that were kept from the passes; this is no change of the model."""
    gone = [function for function in context.opaque if function.identifier() not in context.model.functions]
    if gone:
        with context.editor.change(Finalize.name):
            context.editor.add_functions(gone)


def _raise_opset(context: Context, pending: list[tuple[ir.Node, int]]) -> int:
    """Raise the model to the newest opset that one of its nodes is marked with."""
    if not pending:
        return 0
    newest, needed = max(pending, key=lambda one: one[1])
    if needed > context.target.max_opset:
        raise TargetError(
            f"{newest.op_type} '{newest.name}' needs opset {needed}, and no rule lowers it to opset {context.target.max_opset}"
        )
    raise_opset(context.model, needed, context.target, context.facts, context.editor)
    if left := list(_pending(context)):
        # A function may import an older opset than the model, and then keeps an older one.
        raise TargetError(
            f"{left[0][0].op_type} '{left[0][0].name}' needs opset {left[0][1]}, to which the function it is in cannot be "
            f"raised; give --max-opset {left[0][1] - 1} to do without it"
        )
    return 1


def _raise_ir_version(context: Context, for_opset: bool) -> int:
    """Raise the IR version to the first with initializers that are not inputs, if the model has any or its opset needs it."""
    model, graph = context.model, context.model.graph
    has_free = not all(value.is_graph_input() for value in graph.initializers.values())
    if model.ir_version >= _FREE_INITIALIZERS or not (has_free or for_opset):
        return 0
    context.editor.set_ir_version(_FREE_INITIALIZERS)
    context.editor.set_inputs([value for value in graph.inputs if not value.is_initializer()])
    return 1


def _pending(context: Context) -> Iterator[tuple[ir.Node, int]]:
    """The nodes that are newer than the opset that their graph imports, and the opset each needs."""
    for scope in context.scopes():
        opset = scope.opset
        for node in scope.graph:
            if (needed := opset_needed(node)) > opset:
                yield node, needed


def _clear_versions(scope: Scope, editor: Editor) -> None:
    """Remove the version marks: from here on the opset imports decide the version of every node."""
    for node in scope.graph:
        if node.version is not None:
            editor.set_version(node, None)


def _bodies_that_may_not_run(context: Context) -> set[ir.Graph]:
    """The bodies of Loops that stack results and may have no iteration, and the graphs nested in them."""
    sizes = Nonempty(context.model.graph, context.facts, context.least_sizes)
    return {
        inner
        for scope in context.scopes()
        for node in scope.graph
        if node.op_type == "Loop" and not node.domain and not sizes.surely_runs(node)
        for body in subgraphs(node)
        if len(body.outputs) >= len(body.inputs)
        for inner in nested(body)
    }


def _declare_types(scope: Scope, context: Context, *, adds: bool, symbolic: bool) -> int:
    """Declare what is known of the values of a graph; shapes where there is none only if it `adds` them."""
    if scope.root is not context.model.graph:
        return 0
    changes, is_blocked = 0, Quirk.UNBLOCKS_RESIDUAL_CONVOLUTIONS in context.target.quirks
    named = unlike_sizes(scope, context.facts) if is_blocked else frozenset()
    for node in scope.graph:
        for value in node.outputs:
            if not value.name:
                continue
            type_, shape = value.type, value.shape
            if type_ is None and (dtype := context.facts.dtype(value)) is not None:
                type_ = ir.TensorType(dtype)
            inner = not value.is_graph_output() or (shape is None and scope.graph is not scope.root)
            if inner and (adds or shape is not None):
                shape = _proved(shape, context.facts.shape(value), symbolic or value in named)
                shape = with_named_sizes(shape, value) if context.target.spec.plans_buffers_by_names else shape
            if type_ is not value.type or shape is not value.shape:
                context.editor.set_type(value, type_, shape)
                changes += 1
    return changes


def _proved(declared: ir.Shape | None, known: Sequence[DimLike] | None, symbolic: bool) -> ir.Shape | None:
    """The shape to declare; the declared one itself if nothing is known or it says the same."""
    if known is None:
        return declared
    dims = [_declared(dim, symbolic) for dim in known]
    written = None if declared is None else [d if isinstance(d, int) else d.value for d in declared.dims]
    return declared if dims == written else ir.Shape(dims)


def _declared(dim: DimLike, symbolic: bool) -> int | str | None:
    """The declared form of a dimension; `None` if it is unknown or its formula is too long."""
    if isinstance(dim, int) or not symbolic:
        return dim if isinstance(dim, int) else None
    text = str(dim)
    return None if dim.fresh or len(text) > _LONGEST_FORMULA else text


def _drop_imports(root: ir.Graph, model: ir.Model, editor: Editor) -> int:
    # When the runtime inlines functions, it looks up their calls in the imports of the main graph.
    users = roots(model) if root is model.graph else [root]
    used = {node.domain for user in users for node in nodes_within(user)}
    unused = [domain for domain in root.opset_imports if domain and domain not in used]
    for domain in unused:
        editor.set_import(root, domain, None)
    return len(unused)


def _sort(root: ir.Graph, editor: Editor) -> int:
    if all(_is_sorted(graph) for graph in nested(root)):
        return 0
    editor.sort(root)
    return 1


def _is_sorted(graph: ir.Graph) -> bool:
    """Whether every node comes after all nodes of the graph whose outputs it, or a node nested in it, uses."""
    seen: set[ir.Node] = set()
    for node in graph:
        for user in (node, *nested_nodes(node)):
            for value in user.inputs:
                producer = value.producer() if value is not None else None
                if producer is not None and producer.graph is graph and producer not in seen:
                    return False
        seen.add(node)
    return True


def _name_values(root: ir.Graph, editor: Editor) -> int:
    """Name unnamed values, and rename values that share a name with another value of any graph of the root."""
    changes = 0
    taken: set[str] = set()
    numbers: Counter[str] = Counter()
    pending: deque[tuple[ir.Graph, bool]] = deque([(root, False)])
    while pending:
        graph, named = pending.popleft()
        # In this order, names that callers of the model know are claimed before any other value can take them.
        values = dict.fromkeys([*graph.inputs, *graph.outputs, *graph.initializers.values()])
        values.update(dict.fromkeys(output for node in graph for output in node.outputs if output.name != ""))
        kept = {*graph.inputs, *graph.outputs} if named else set()
        for value in values:
            if value.name is None or (value.name in taken and value not in kept):
                editor.rename(value, _unused_name(value, taken, numbers))
                changes += 1
            taken.add(value.name or "")
        pending += [(inner, has(node, NAMES_INPUTS)) for node in graph for inner in subgraphs(node)]
    return changes


def _unused_name(value: ir.Value, taken: Set[str], numbers: Counter[str]) -> str:
    """A name that is not taken; `numbers` has the last one that each stem was given."""
    producer = value.producer()
    stem = value.name or (producer.op_type if producer is not None else "value")
    while True:
        numbers[stem] += 1
        if (name := f"{stem}_{numbers[stem]}") not in taken:
            return name
