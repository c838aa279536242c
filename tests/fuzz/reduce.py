"""Makes a failing model small: fewer outputs, fewer nodes, inputs in the place of what computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import helper

from .builder import Array, free_names, session

Feeds = dict[str, Array]
Case = tuple[onnx.ModelProto, list[Feeds]]
Fails = Callable[[onnx.ModelProto, list[Feeds]], bool]


def reduced(model: onnx.ModelProto, feeds: Sequence[Feeds], fails: Fails) -> Case:
    """The smallest case found that still fails; `fails` must answer with False for models that do not run."""
    case: Case = (model, list(feeds))
    for step in (_one_output, _cut_nodes, _cut_nodes, _one_output, _plain_feeds):
        case = step(case, fails)
    return case


def _try(case: Case, fails: Fails) -> bool:
    try:
        return fails(*case)
    except Exception:
        return False


def _one_output(case: Case, fails: Fails) -> Case:
    """The first value, in the order of the nodes, that alone as an output makes the model fail."""
    model, feeds = case
    for node in model.graph.node:
        for name in node.output:
            smaller = _with_outputs(model, [helper.make_empty_tensor_value_info(name)] if name else [])
            if name and _try((smaller, feeds), fails):
                return smaller, feeds
    for output in model.graph.output:
        smaller = _with_outputs(model, [output])
        if _try((smaller, feeds), fails):
            return smaller, feeds
    return case


def _with_outputs(model: onnx.ModelProto, outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {v.name: v for v in (*model.graph.value_info, *model.graph.output)}
    del copy.graph.output[:]
    copy.graph.output.extend(known.get(v.name, v) for v in outputs)
    return _pruned(copy)


def _pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = model.graph
    wanted = {v.name for v in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= free_names([node]).keys()
    del graph.node[:]
    graph.node.extend(reversed(kept))
    for part in (graph.initializer, graph.input):
        rest = [entry for entry in part if entry.name in wanted]
        del part[:]
        part.extend(rest)
    made = {name for node in graph.node for name in node.output}
    infos = [info for info in graph.value_info if info.name in made]
    del graph.value_info[:]
    graph.value_info.extend(infos)
    return model


def _cut_nodes(case: Case, fails: Fails) -> Case:
    """Nodes, the last first, are replaced by inputs that hold what they compute."""
    model, feeds = case
    for node in reversed(list(model.graph.node)):
        smaller = _without(model, feeds, node)
        if smaller is not None and _try(smaller, fails):
            model, feeds = smaller
    return model, feeds


def _without(model: onnx.ModelProto, feeds: list[Feeds], node: onnx.NodeProto) -> Case | None:
    if any(v.name in node.output for v in model.graph.output) or node not in list(model.graph.node):
        return None
    probe = _with_outputs(model, [helper.make_empty_tensor_value_info(name) for name in node.output if name])
    names = [name for name in node.output if name]
    found: list[Feeds] = []
    try:
        running = session(probe)
        for given in feeds:
            results = running.run(
                None, {k: v for k, v in given.items() if any(i.name == k for i in running.get_inputs())}
            )
            found.append({**given, **dict(zip(names, results, strict=True))})
        declared = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(found[0][name].dtype), [None] * found[0][name].ndim
            )
            for name in names
        ]
    except Exception:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.node.remove(node)
    copy.graph.input.extend(declared)
    return _pruned(copy), found


def _plain_feeds(case: Case, fails: Fails) -> Case:
    model, feeds = case
    for given in feeds:
        if _try((model, [given]), fails):
            return model, [given]
    return case
