"""Decoders in two models: one for the prompt, and one for the steps after it, which lacks what the first alone computes.

The keys and values of cross-attention follow from an encoder's states. The model for the prompt hands them out, and that for
steps takes them. Their nodes move into the latter, so that it takes the states, as if it was exported alone; what does not depend
on tokens is taken out of the generator afterwards (`once_model`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError, OrtfuseError
from ortfuse.generation.decoder_interface import DecoderInterface
from ortfuse.generation.find_interface import find_interface
from ortfuse.generation.interface_names import InterfaceNames
from ortfuse.generation.plain_loop import InputType, PlainLoop, Runs
from ortfuse.ir.editor import Editor
from ortfuse.runtime.submodel import model_of, taken, upstream

Array = np.ndarray[Any, Any]

Crossed = tuple[tuple[str, str], ...]
"""Inputs of a step with the outputs of the prompt's model that they are."""


def compute_crossed(step: ir.Model, prompt: ir.Model, given: Mapping[str, str] | None = None) -> Crossed:
    """Let the model of a step compute what the prompt's model hands out for it, in place; what that is.

    Args:
        step: A decoder with caches.
        prompt: The decoder for the prompt. Inputs of the same name are the same.
        given: Names of inputs and outputs by role, where the graph does not tell.

    Raises:
        GenerationError: The roles of the inputs of the step cannot be told, or which output an input takes.
    """
    interface = find_interface(step, Facts(step), given)
    outputs = _of_fixed_inputs(prompt, interface)
    inputs = _not_given(step, prompt, interface)
    pairs = _pairs(inputs, outputs)
    _drop_handed_on(step, {value.name for value in outputs}, interface)
    if pairs:
        _compute(step, prompt, pairs)
    return tuple((before.name or "", after.name or "") for before, after in pairs)


def _of_fixed_inputs(prompt: ir.Model, interface: DecoderInterface) -> list[ir.Value]:
    """The outputs of the prompt's model that depend on inputs, but on those that tell of tokens by their sizes at most."""
    telling = {value.name for value in (interface.tokens, interface.mask, interface.positions) if value is not None}
    found = []
    for output in prompt.graph.outputs:
        nodes = upstream([output], _reads_elements)
        used = [value.name for value in taken(nodes) if value.is_graph_input()]
        if used and telling.isdisjoint(used) and output.dtype is not None and output.dtype.is_floating_point():
            found.append(output)
    return found


def _reads_elements(node: ir.Node) -> bool:
    return node.op_type not in ("Shape", "Size") or bool(node.domain)


def _not_given(step: ir.Model, prompt: ir.Model, interface: DecoderInterface) -> list[ir.Value]:
    """The inputs of a step of no other role that it uses, and the prompt's model does not."""
    used = {value.name for value in prompt.graph.inputs if value.uses()}
    states = [state.before for state in interface.states]
    fixed = [value for value in step.graph.inputs if value in (*interface.fixed, *states)]
    return [
        value
        for value in fixed
        if value.name not in used
        and value.dtype is not None
        and value.dtype.is_floating_point()
        and any(use.node.op_type != "Identity" or not use.node.outputs[0].is_graph_output() for use in value.uses())
    ]


def _pairs(inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> list[tuple[ir.Value, ir.Value]]:
    """Each input with the output whose name ends like its own or, if the names do not tell, in order."""
    if not inputs:
        return []
    found = []
    for value in inputs:
        alike = [output for output in outputs if _fits(value, output)]
        lengths = [_common_end(one.name or "", value.name or "") for one in alike]
        best = [output for output, length in zip(alike, lengths, strict=True) if length == max(lengths)]
        if len(best) == 1 and max(lengths):
            found.append((value, best[0]))
    if len(found) == len({output for _, output in found}) == len(inputs):
        return found
    if len(inputs) == len(outputs) and all(map(_fits, inputs, outputs)):
        return list(zip(inputs, outputs, strict=True))
    names = [", ".join(value.name or "" for value in values) for values in (inputs, outputs)]
    raise GenerationError(
        f"the model of a step takes {names[0]}, which the prompt's model does not; which of its outputs "
        f"({names[1] or 'none depends on fixed inputs alone'}) these are cannot be told: give both names that end alike"
    )


def _common_end(one: str, other: str) -> int:
    """How many last characters two names have in common."""
    pairs = enumerate(zip(reversed(one), reversed(other), strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def _fits(value: ir.Value, output: ir.Value) -> bool:
    one, other = value.shape, output.shape
    if value.dtype != output.dtype or one is None or other is None or len(one) != len(other):
        return value.dtype == output.dtype and (one is None or other is None)
    return all(a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in zip(one, other, strict=True))


def _drop_handed_on(step: ir.Model, names: Collection[str | None], interface: DecoderInterface) -> None:
    """Remove the outputs of a step that stand for those of the prompt's model, and are constants or its own inputs."""
    kept = {interface.logits, *(cache.present for cache in interface.caches)}
    for output in list(step.graph.outputs):
        if (
            output.name in names
            and output not in kept
            and interface.tokens not in taken(upstream([output], _reads_elements))
        ):
            step.graph.outputs.remove(output)


def _compute(step: ir.Model, prompt: ir.Model, pairs: Sequence[tuple[ir.Value, ir.Value]]) -> None:
    if step.graph.opset_imports != prompt.graph.opset_imports:
        found = [", ".join(f"{name or 'ai.onnx'} {version}" for name, version in sorted(model.graph.opset_imports.items()))
                 for model in (prompt, step)]  # fmt: skip
        raise GenerationError(
            f"the prompt's model has the opsets {found[0]}, that of a step {found[1]}: export both for the same ones"
        )
    nodes = upstream([output for _, output in pairs])
    used = [*taken(nodes), *(output for _, output in pairs if output.producer() is None)]
    inputs = {value: value.name or "" for value in dict.fromkeys(used) if value.is_graph_input()}
    constants = {value: value.const_value for value in used if value not in inputs and value.const_value is not None}
    outputs = [(output.name or "", output) for _, output in pairs]
    part = model_of(nodes, inputs, outputs, constants, prompt.graph.opset_imports, functions=prompt.functions.values())
    step.functions.update({key: one for key, one in part.functions.items() if key not in step.functions})
    graph = step.graph
    there = {value.name: value for value in graph.inputs}
    given = []
    for value in part.graph.inputs:
        if value.name not in there:
            made = ir.Value(name=value.name, type=value.type, shape=value.shape)
            graph.inputs.append(made)
            there[value.name] = made
        given.append(there[value.name])
    editor = Editor(step, Facts(step), author="compute_crossed")
    first = graph[0]
    with editor.change("compute_crossed", nodes=[first]):
        results = editor.insert_copy(first, part.graph, given)
        assert results is not None
        for (value, _), result in zip(pairs, results, strict=True):
            for use in tuple(value.uses()):
                use.node.replace_input_with(use.idx, result)
    for value, _ in pairs:
        graph.inputs.remove(value)


def takes_several_tokens(
    prompt: Runs,
    step: Runs,
    names: InterfaceNames,
    types: Mapping[str, InputType],
    fixed: Mapping[str, Array],
    vocabulary: int,
) -> bool:
    """Whether the model of a step, with empty caches, gives a prompt's scores; otherwise it does so token by token.

    A model that was traced for one new token may have no mask among several.

    Args:
        prompt: Runs the prompt's model.
        step: Runs that of a step; both may be one, whose branch an input chooses.
        names: The roles of inputs and outputs.
        types: Those of the inputs of both.
        fixed: The inputs that stay the same in all steps.
        vocabulary: The number of tokens that there are.

    Raises:
        GenerationError: The scores are others token by token, too, or what steps take depends on the prompt.
    """
    single = types[names.tokens].shape[1] == 1
    tokens = np.random.default_rng(1).integers(0, vocabulary, (1, 1 if single else 5))
    whole, other = (PlainLoop(step, names, types, first=prompt) for _ in range(2))
    wanted = whole.step(tokens, fixed)
    other.step(tokens[:, :1], fixed)
    for before, after in names.crossed:
        if not np.array_equal(other.crossed[before], whole.crossed[before]):
            raise GenerationError(f"the output {after} of the prompt's model depends on the prompt, and steps take it")
    problem = ""
    for pieces in ([tokens], [tokens[:, [place]] for place in range(tokens.shape[1])]):
        last = PlainLoop(step, names, types)
        last.take_crossed(whole)
        try:
            got = np.concatenate([last.step(piece, fixed) for piece in pieces], axis=1)
        except OrtfuseError as error:
            problem = f"cannot run with empty caches: {error}"
            continue
        rows = min(got.shape[1], wanted.shape[1])  # some hand out the scores after the last token alone
        difference = float(np.abs(got[:, -rows:] - wanted[:, -rows:]).max()) / max(float(np.std(wanted)), 1e-12)
        if difference <= _TOLERANCE:
            return len(pieces) == 1 and not single
        problem = (
            "with empty caches gives other scores for a prompt than the prompt's model: they differ by "
            f"{difference:.2g} of their spread; are they of one decoder?"
        )
    raise GenerationError(f"the model of a step {problem}")


_TOLERANCE = 1e-2
