"""The document of `ortfuse generator`: the layers, the interface, and how generations compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortfuse.report.document import Document, Notes

if TYPE_CHECKING:
    from ortfuse.api.generator import GeneratorResult
    from ortfuse.generation.compare_generations import GenerationComparison

MOST = 12
"""The layers with a growing cache that the terminal shows."""


def generator_document(name: str, done: GeneratorResult) -> Document:
    """Show what was made of a decoder.

    Args:
        name: The name of the decoder.
        done: The generator.
    """
    interface = done.interface
    in_place = sum(cache.in_place for cache in interface.caches)
    first = f"{in_place} of {len(interface.caches)} caches stay in place, in buffers for {interface.max_length} tokens"
    lines = [first]
    if interface.states:
        lines.append(f"{len(interface.states)} states of constant size are handed from step to step")
    if not interface.mixed_lengths:
        why = f": {done.one_length}" if done.one_length and not done.kept else ""
        lines.append(f"the prompts of a batch have one length{why}")
    if interface.longest_run == 1:
        lines.append("a run takes one token: a prompt is given token by token")
    elif interface.longest_run:
        lines.append(f"a run takes up to {interface.longest_run} tokens: a longer prompt is given in pieces")
    pasts = "each past" if done.unsampled else "a choice of pasts"
    lines.append(f"masks and positions were evaluated after {pasts} up to that, and for prompts")
    if done.oldest_runtime is not None:
        lines.append(f"runs in ONNX Runtime {done.oldest_runtime} and newer")
    lines += [_comparison(one) for one in (done.comparison, *done.others) if one is not None]
    lines += [f"never run on {target}, only checked by its kernel table: {why}" for target, why in done.not_run.items()]
    if any(cache.dtype == "int8" for cache in interface.caches):
        lines.append("keys and values are 8-bit integers: compare their tokens on your own prompts")
    if done.int4:
        lines.append(f"{done.int4} matrix products have weights of 4 bits: compare their tokens on your own prompts")
    if done.unpacked:
        lines.append(
            f"a session unpacks the weights of {done.unpacked} products to float32 when it loads, for speed: 8 times their "
            "size in memory; --force matmul_nbits=none keeps them packed"
        )
    if done.written is not None:
        written = f"written: {done.written}"
    else:
        written = "nothing was written; -o FOLDER writes the generator" if done.ok else "nothing was written"
    kept = [f"{layer}: {why}" for layer, why in done.kept.items()]
    blocks = [
        Notes("", lines, on="terminal"),
        Notes("Growing caches", kept, "grows: ", most=MOST),
        Notes("", [written], on="terminal"),
    ]
    return Document(f"{name}, made a generator", f"{'. '.join(lines)}.", blocks)


def _comparison(comparison: GenerationComparison) -> str:
    found = f"{comparison.steps} steps of {comparison.prompts} generations"
    if not comparison.equal:
        return f"differs on {comparison.target} in {found}, first in {comparison.first}"
    ties = f", {comparison.near_ties} near ties apart" if comparison.near_ties else ""
    batch = f", {comparison.batch} of them also in one batch" if comparison.batch else ""
    error = f"largest error {comparison.largest_error:.2e} of the scores' spread"
    return f"verified on {comparison.target}: the same tokens in {found}{batch}{ties}, {error}"
