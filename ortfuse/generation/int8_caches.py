"""Caches of a generator as 8-bit integers: a quarter of the memory, with one scale for each channel of each head.

Formula: q(x) = clip(round(x / s), -128, 127), with s such that the largest number of the channel, with headroom, becomes 127. The
operator (com.microsoft.GroupQueryAttention, k_quant_type = v_quant_type = PER_CHANNEL) rounds keys and values when they are
appended, after rotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import GenerationError
from ortfuse.generation.check_target import demand_kernels
from ortfuse.generation.generator import Generator
from ortfuse.generation.generator_interface import GeneratorInterface, write_interface
from ortfuse.targets import Target

Array = np.ndarray[Any, Any]

HEADROOM = 1.25
"""How much larger numbers may be than those that were seen: cutting one off costs far more than wider steps."""

SMALLEST = 1e-8
"""The least scale, for channels that were always 0."""

_SCALES = 12
"""The number of the inputs with the scales of keys and values."""


def cache_scales(
    generator: Generator, prompts: Sequence[Sequence[int]], new_tokens: int, fixed: Mapping[str, Array] | None
) -> dict[str, Array]:
    """The scales of the channels of each cache in place, [heads * size] float32, by the name of its input.

    Args:
        generator: The generator in float32.
        prompts: The prompts on which the largest numbers are looked for, with the tokens that follow them.
        new_tokens: How many tokens follow each.
        fixed: The inputs that stay the same in all steps.
    """
    largest: dict[str, Array] = {}
    for prompt in prompts:
        generator.generate([prompt], max_new_tokens=new_tokens, fixed=fixed)
        for name, array in generator.cached().items():
            seen = np.abs(array).max(axis=(0, 2), initial=0)
            largest[name] = np.maximum(largest.get(name, seen), seen)
    return {
        name: np.maximum(HEADROOM * seen.reshape(-1) / 127, SMALLEST).astype(np.float32)
        for name, seen in largest.items()
    }


def make_caches_int8(model: ir.Model, interface: GeneratorInterface, scales: Mapping[str, Array]) -> GeneratorInterface:
    """Let the caches in place hold 8-bit integers, in place; the interface afterwards.

    Raises:
        GenerationError: No cache is in place, or one is not in float32.
    """
    changed: dict[str, ir.Value] = {}  # their scales: several layers may read one cache
    for node in model.graph:
        if node.op_type != "GroupQueryAttention" or len(node.inputs) < 5:
            continue
        pasts = node.inputs[3:5]
        names = [value.name or "" for value in pasts if value is not None]
        if len(names) != 2 or any(name not in scales for name in names):
            continue
        if any(value is None or (value.name not in changed and value.dtype != ir.DataType.FLOAT) for value in pasts):
            raise GenerationError(f"the caches of {node.name} are not in float32, and only such are made integers")
        if len(node.inputs) < _SCALES + 2:
            node.resize_inputs(_SCALES + 2)
        for number, name in enumerate(names):
            if name not in changed:
                changed[name] = _constant(model, f"{name}.scale", scales[name])
            node.replace_input_with(_SCALES + number, changed[name])
        for kind in ("k_quant_type", "v_quant_type"):
            node.attributes[kind] = ir.AttrString(kind, "PER_CHANNEL")
        node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", 8)
        for value in (*pasts, *node.outputs[1:3]):
            assert value is not None
            value.type = ir.TensorType(ir.DataType.INT8)
    if not changed:
        raise GenerationError("no cache is in place, so that none can hold 8-bit integers")
    caches = tuple(replace(one, dtype="int8") if one.past in changed else one for one in interface.caches)
    found = replace(interface, caches=caches)
    write_interface(model, found)
    return found


def demand_int8_kernels(model: ir.Model, interface: GeneratorInterface, target: Target) -> None:
    """Refuse caches of 8-bit integers that a target does not execute, before their scales are measured.

    Raises:
        GenerationError: It has no kernel for them, or they cannot be made.
    """
    trial = model.clone()
    sizes = {one.past: one.shape[1] * one.shape[-1] for one in interface.caches if one.in_place}
    make_caches_int8(trial, interface, {past: np.ones(size, np.float32) for past, size in sizes.items()})
    demand_kernels(trial, target)


def _constant(model: ir.Model, name: str, array: Array) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    model.graph.register_initializer(value)
    return value
