"""Check which attention of a generator a target executes, for how many new tokens at once, and from which release on.

The kernel of GroupQueryAttention takes several tokens behind others for one sequence only, which the interface of a generator
says. So the checks are made for one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError
from ortfuse.generation.attention_sites import AttentionSite
from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets import Target, oldest_release
from ortfuse.targets.target_spec import TargetSpec


class AttentionCheck:
    """Checks attention with a cache in place, before it is made, by a model of it alone.

    Attributes:
        most_tokens: The most new tokens that all sites found legal so far take at once.
    """

    def __init__(self, target: Target, max_length: int) -> None:
        """Take the target, and the greatest number of tokens, which is the length of the buffers."""
        self._target, self._max_length = target, max_length
        self.most_tokens = max_length

    def executed(self, site: AttentionSite) -> AttentionSite | str:
        """The site in a form that the target executes, or why it executes none for any number of new tokens.

        A window that the kernel does not take becomes a bias, if it takes one.
        """
        for form in (site, *_window_as_bias(site, self._max_length)):
            if not self._refusal(form, 1):
                self.most_tokens = self._most(form)
                return form
        why = self._refusal(site, 1)
        instead = next((text for text, other in _easier(site) if not self._refusal(other, 1)), "")
        does = f"executes it only {instead}" if instead else "does not execute it"
        return f"{_words(self._target)} {does}: {why}"

    def _most(self, site: AttentionSite) -> int:
        """The most new tokens that the target takes at once: those that are more are refused, too."""
        low, high = 1, self.most_tokens
        if not self._refusal(site, high):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._refusal(site, middle) else (middle, high)
        return low

    def _refusal(self, site: AttentionSite, length: int) -> str:
        model = _attention_alone(site, length, self._max_length)
        (node,) = model.graph
        refusal = self._target.check_node(node, model.opset_imports, Facts(model))
        return "" if refusal is None else refusal.reason


def _window_as_bias(site: AttentionSite, length: int) -> Iterator[AttentionSite]:
    """The same site with a bias that hides the keys before its window, if it has one."""
    window = site.mask.window
    if window < 0:
        return
    # A sum with scores of either sign is finite, also in float16, and far below that of any visible key.
    hides = np.where(np.arange(length) < window, 0, np.finfo(site.kind.numpy()).min / 2).astype(np.float32)[None]
    bias = hides if site.mask.bias is None else np.where(hides < 0, hides, site.mask.bias)
    yield replace(site, mask=replace(site.mask, window=-1, bias=bias))


def _easier(site: AttentionSite) -> Iterator[tuple[str, AttentionSite]]:
    """Sites that lack one thing, in words: one that the target executes tells what it does not take."""
    if site.kind != ir.DataType.FLOAT16:
        yield (
            "in float16, which `ortfuse convert DECODER --to float16 -o FILE` makes",
            replace(site, kind=ir.DataType.FLOAT16),
        )
    if site.mask.bias is not None:
        yield "without a bias of the distance", replace(site, mask=replace(site.mask, bias=None))
    if site.mask.sink is not None:
        yield "without a sink", replace(site, mask=replace(site.mask, sink=None))
    if site.softcap:
        yield "without a bound of its scores (softcap)", replace(site, softcap=0.0)


def _attention_alone(site: AttentionSite, length: int, total: int) -> ir.Model:
    """A model of one node, the attention that a site becomes for one sequence with buffers of `total` tokens."""
    kind = site.kind

    def value(name: str, kind: ir.DataType, *sizes: int) -> ir.Value:
        return ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(sizes))

    new, past = (1, length, site.groups * site.size), (1, site.groups, total, site.size)
    shapes = (1, length, site.heads * site.size), past, past
    given: list[ir.Value | None] = [
        value("query", kind, *shapes[0]), value("key", kind, *new), value("value", kind, *new),
        value("past_key", kind, *past), value("past_value", kind, *past),
        value("seqlens_k", ir.DataType.INT32, 1), value("total_sequence_length", ir.DataType.INT32),
    ]  # fmt: skip
    tables = () if site.rotation is None else (("cos_cache", site.rotation.cos), ("sin_cache", site.rotation.sin))
    given += [value(name, kind, *table.shape) for name, table in tables] or [None, None]
    given.append(None)  # position_ids
    given.append(None if site.mask.bias is None else value("attention_bias", kind, 1, site.heads, length, total))
    given.append(None if site.mask.sink is None else value("head_sink", kind, site.heads))
    while given[-1] is None:
        given.pop()
    node = ir.node("GroupQueryAttention", given, site.attributes, domain=MICROSOFT, num_outputs=3)
    for output, name, sizes in zip(node.outputs, ("output", "present_key", "present_value"), shapes, strict=True):
        output.name, output.type, output.shape = name, ir.TensorType(kind), ir.Shape(sizes)
    inputs = [one for one in given if one is not None]
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"": 18, MICROSOFT: 1}, name="attention")
    return ir.Model(graph, ir_version=9)


def demand_kernels(model: ir.Model, target: Target) -> None:
    """Refuse a generator that the target does not execute.

    Raises:
        GenerationError: It has no kernel for an attention of the generator.
    """
    one = _for_one_sequence(model)
    facts = Facts(one)
    for node in one.graph:
        if node.op_type == "GroupQueryAttention":
            refusal = target.check_node(node, one.opset_imports, facts)
            if refusal is not None:
                text = f"{_words(target)} does not execute the attention of the generator"
                raise GenerationError(f"{text}: {refusal.reason}")


def _words(target: Target) -> str:
    return f"{target.table.runtime} ({target.provider})"


def oldest_release_of(model: ir.Model, spec: TargetSpec) -> str | None:
    """The oldest release, such as `1.23`, that executes a generator; `None` if that is not known."""
    return oldest_release(_for_one_sequence(model), spec)


def _for_one_sequence(model: ir.Model) -> ir.Model:
    copy = model.clone()
    for value in copy.graph.inputs:
        if value.shape is not None and len(value.shape) > 1:
            value.shape = ir.Shape([1, *value.shape[1:]])
    return copy
