"""Run a user's pass: attribute its errors, detect edits that bypass the editor, and check them.

Inspectors see what is done through the editor. A pass can also assign to nodes and graphs directly. If there is an
inspector, the models before and after are then compared, as for passes of other packages
(`ortfuse.transforms.onnx_ir_adapter`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import onnx_ir as ir

from ortfuse.errors import OrtfuseError, PipelineError
from ortfuse.ir import walk
from ortfuse.ir.detect_unlogged_edits import Identity, changes, contents
from ortfuse.ir.graph_transaction import Change
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Log
from ortfuse.transforms.context import Context, Pass
from ortfuse.transforms.onnx_ir_adapter import inspected, take_over


def is_of_ortfuse(transformer: Pass) -> bool:
    """Whether a pass comes with ortfuse."""
    return type(transformer).__module__.partition(".")[0] == "ortfuse"


def run_pass(transformer: Pass, context: Context) -> int:
    """Run a pass; returns the number of changes.

    Raises:
        PipelineError: A pass that is not one of ortfuse's raises an exception, which is the cause, or returns no number.
    """
    if is_of_ortfuse(transformer):
        return transformer.run(context)
    try:
        count = _watched(transformer, context) if context.is_inspected else transformer.run(context)
    except OrtfuseError:
        raise
    except Exception as error:
        raise PipelineError(f"pass {transformer.name} fails: {type(error).__name__}: {error}") from error
    if not isinstance(count, int):
        raise PipelineError(f"pass {transformer.name} must return the number of its changes, not {count!r}")
    return count


def _watched(transformer: Pass, context: Context) -> int:
    """Run a pass, and show the inspector what it writes past the editor."""
    before, watch = context.model.clone(), _Watch(context.model, context.log)
    context.editor.recorder = watch
    try:
        count = transformer.run(context)
    finally:
        context.editor.recorder = context.log
    if not watch.was_evaded():
        return count
    known, trial = contents(before), context.model.clone()
    take_over(context.model, before)
    context.editor.renew_facts()
    result = inspected(context, trial, transformer.name)
    if result is not context.model:
        take_over(context.model, result)
    context.editor.renew_facts()
    return changes(known, contents(context.model))


class _Watch:
    """Track the changes made through the editor of a model, to tell whether others were made. May err towards yes."""

    def __init__(self, model: ir.Model, log: Log) -> None:
        self._model, self._log = model, log
        self._nodes = {node: _written(node) for node in walk.nodes(model)}
        self._inputs = {node: tuple(node.inputs) for node in self._nodes}
        self._outputs = {graph: tuple(graph.outputs) for graph in walk.graphs(model)}
        self._constants = {value: value.const_value for value in _initializers(model)}
        self._replaced: dict[ir.Value, ir.Value] = {}

    def changed(self, change: Change) -> None:
        """A change was made through the editor."""
        self._log.changed(change)
        self._replaced.update(change.replaced)
        for node in change.removed:
            for inner in (node, *walk.nested_nodes(node)):
                self._nodes.pop(inner, None)
        for node in change.added:
            for inner in (node, *walk.nested_nodes(node)):
                self._nodes[inner], self._inputs[inner] = _written(inner), tuple(inner.inputs)

    def refuse(self, change: Change, refusal: Refusal) -> None:
        """A change is about to be undone."""
        self._log.refuse(change, refusal)

    def was_evaded(self) -> bool:
        """Whether the model is not what the changes through the editor have made of it."""
        nodes = list(walk.nodes(self._model))
        if len(nodes) != len(self._nodes) or any(self._nodes.get(node) != _written(node) for node in nodes):
            return True
        if any(
            self._constants.get(value, value.const_value) is not value.const_value
            for value in _initializers(self._model)
        ):
            return True
        outputs = ((self._outputs.get(graph, ()), graph.outputs) for graph in walk.graphs(self._model))
        wired = [*((self._inputs[node], node.inputs) for node in nodes), *outputs]
        return any(len(before) != len(after) or not all(map(self._became, before, after)) for before, after in wired)

    def _became(self, before: ir.Value | None, after: ir.Value | None) -> bool:
        """Whether one value stands where the other stood because the editor replaced it."""
        seen = set()
        while before is not after and before in self._replaced and before not in seen:
            seen.add(before)
            before = self._replaced[before]
        return before is after


def _written(node: ir.Node) -> Hashable:
    """Return a key for the computation of a node, without its inputs: equal attributes are the same objects."""
    attributes = tuple((name, Identity(node.attributes[name])) for name in sorted(node.attributes))
    return node.op_identifier(), attributes


def _initializers(model: ir.Model) -> Iterable[ir.Value]:
    return (value for graph in walk.graphs(model) for value in graph.initializers.values())
