"""Run passes of onnx_ir and rules of onnxscript as passes of ortfuse.

An `onnx_ir.passes` pass of any kind and an onnxscript `RewriteRule` or `RewriteRuleSet` edit a model without the
editor. So the model is compared with its earlier state: the changes are counted, and the facts are computed afresh.

If there is an inspector, they are run on a copy. Each region in which the copy differs is then replaced in the model,
one by one, unless the inspector objects. Changes other than to regions (opsets, functions, control flow) are let through with a
note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortfuse.errors import PipelineError
from ortfuse.ir import walk
from ortfuse.ir.detect_unlogged_edits import changes, contents
from ortfuse.ir.graph_diff import Region, difference
from ortfuse.ir.preserved_nodes import keep, keeper, telling
from ortfuse.rewrite import Exactness
from ortfuse.transforms.context import Context


@dataclass(frozen=True)
class ForeignPass:
    """A pass of another package.

    Attributes:
        name: Its name in pipelines.
        passed: The pass, rule or set of rules.
    """

    name: str
    passed: Any

    @property
    def exactness(self) -> Exactness:
        """The allowed difference of its results: foreign passes declare nothing, so rounding is allowed."""
        return Exactness.ROUNDING

    def run(self, context: Context) -> int:
        """Run it; returns the number of places where the model changed."""
        before = contents(context.model)
        if context.is_inspected:
            result = inspected(context, self._apply(context.model.clone()), self.name, self)
        else:
            known = set(walk.nodes(context.model))
            result = self._apply(context.model)
            self.keep([node for node in walk.nodes(result) if node not in known])
        count = changes(before, contents(result))
        if count:
            if result is not context.model:
                take_over(context.model, result)
            context.editor.renew_facts()
        return count

    def keep(self, made: Sequence[ir.Node]) -> None:
        """Mark what a rule has made to stay, as what other rules of the user's own make does; passes are no rules."""
        if not isinstance(self.passed, ir.passes.PassBase):
            keep(telling(made), f"your rule {self.name}")

    def _apply(self, model: ir.Model) -> ir.Model:
        """The model after the pass, which may be another object."""
        try:
            if isinstance(self.passed, ir.passes.PassBase):
                return self.passed(model).model
            self.passed.apply_to_model(model)
        except Exception as error:
            raise PipelineError(f"pass {self.name} fails: {type(error).__name__}: {error}") from error
        return model


def inspected(context: Context, trial: ir.Model, name: str, rule: Any = None) -> ir.Model:
    """The model that pass `name` turned into `trial`, with each region in which they differ shown to the inspector.

    Args:
        context: Holds the model before the pass, into which regions are moved.
        trial: The model after the pass.
        name: The name of the pass.
        rule: The pass, if it may change bits.

    Returns:
        `trial` if every region was accepted or none could be checked, otherwise the model of `context`.
    """
    found = difference(context.model, trial)
    if found.beyond is not None:
        context.note(f"{name} is not checked where it changed the model: {found.beyond}")
        return trial
    if isinstance(rule, ForeignPass):
        for region in found.regions:
            before = {node.op_identifier() for node in region.old}
            rule.keep([node for node in region.new if node.op_identifier() not in before])
    agreed = [_exchange(context, region, name, rule) for region in found.regions]
    # Names, metadata and declared types are taken over too, but only if every region was accepted.
    return trial if all(agreed) else context.model


def _exchange(context: Context, region: Region, name: str, rule: Any) -> bool:
    """Replace the old nodes of a region by the new ones; returns whether that was accepted."""
    editor = context.editor
    if not region.old:
        return True  # nothing uses it
    with editor.change(name, rule=rule, nodes=region.old) as change:
        place = region.old[-1]
        copies = _Copies(context, region, name)
        editor.insert_after(place, *[copies.node(node) for node in region.new])
        for old, new in region.outputs:
            editor.replace(old, copies.value(new))
        editor.remove(*region.old)
        editor.sort(region.graph)
    return bool(change)


class _Copies:
    """Copy the new nodes of a region into the old graph."""

    def __init__(self, context: Context, region: Region, name: str) -> None:
        self._editor, self._region, self._name = context.editor, region, name
        self._values: dict[ir.Value, ir.Value] = {}
        self._known: dict[str | None, ir.Value] = {}
        wanted = {value.name for node in region.new for value in node.inputs if value is not None}
        wanted |= {new.name for _, new in region.outputs}
        for scope in reversed(list(context.scopes())):
            if scope.graph is region.graph or scope.graph is scope.root:
                outputs = [value for node in scope.graph for value in node.outputs]
                values = [*scope.graph.inputs, *scope.graph.initializers.values(), *outputs]
                self._known |= {value.name: value for value in values if value.name in wanted}

    def node(self, node: ir.Node) -> ir.Node:
        """A copy of a node."""
        copy = ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else self.value(value) for value in node.inputs],
            node.attributes.values(),
            overload=node.overload,
            num_outputs=len(node.outputs),
            version=node.version,
            name=node.name,
            metadata_props=dict(node.metadata_props),
        )
        if keeper(node):
            keep([copy], keeper(node))
        for value, output in zip(node.outputs, copy.outputs, strict=True):
            output.type, output.shape = value.type, value.shape
            if value.name == "":
                output.name = ""
            self._values[value] = output
        return copy

    def value(self, value: ir.Value) -> ir.Value:
        """The value of the old graph that corresponds to a value of the new one."""
        if value in self._values:
            return self._values[value]
        known = self._known.get(value.name)
        tensor = value.const_value if value.producer() is None else None
        if known is not None and (tensor is None or (known.producer() is None and known.const_value is tensor)):
            return known
        if tensor is None:
            raise PipelineError(f"pass {self._name}: '{value.name}' is used without being computed")
        constant = self._editor.add_constant(self._region.old[-1], tensor)
        assert constant is not None
        self._values[value] = constant
        return constant


def foreign_pass(given: Any, name: str | None = None) -> ForeignPass | None:
    """Wrap a pass of onnx_ir, or a rule or set of rules of onnxscript; `None` if it is none of these.

    Args:
        given: The object that may be a pass.
        name: Its name in pipelines; by default its package and class, or the rule's own name.
    """
    is_rule = hasattr(given, "apply_to_model") and type(given).__module__.partition(".")[0] == "onnxscript"
    if not is_rule and not isinstance(given, ir.passes.PassBase):
        return None
    package = type(given).__module__.partition(".")[0].strip("_")
    own = getattr(given, "name", None) if is_rule else None
    return ForeignPass(name or f"{package}.{own or type(given).__name__}", given)


def take_over(model: ir.Model, other: ir.Model) -> None:
    """Move the contents of another model into this one; the other one is unusable afterwards."""
    model.graph = other.graph
    model.ir_version, model.doc_string = other.ir_version, other.doc_string
    model.producer_name, model.producer_version = other.producer_name, other.producer_version
    model.domain, model.model_version = other.domain, other.model_version
    model.metadata_props.clear()
    model.metadata_props.update(other.metadata_props)
    model.functions.clear()
    model.functions.update(other.functions)
