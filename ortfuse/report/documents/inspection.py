"""The document of `ortfuse inspect`: the contents of a model, and its costs on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ortfuse.report.document import Block, Card, Cards, Document, Notes, Rows

if TYPE_CHECKING:
    from ortfuse.inspection import Inspection, Port, Region

MOST_OPERATORS = 12
"""The operators whose cost the terminal shows."""

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def inspection_document(name: str, found: Inspection) -> Document:
    """Show the contents of a model, and its costs on this machine.

    Args:
        name: The name of the model.
        found: What was found in it.
    """
    nodes, sizes = sum(found.operators.values()), ", ".join(f"{one}={size}" for one, size in found.sizes.items())
    missing = [
        f"{one.operator}, {len(one.nodes)} nodes such as '{one.nodes[0]}': {one.reason}; "
        + (one.fallback or "it does not load the model")
        for one in found.detours
    ]
    cards = [
        Card("nodes", str(nodes)), Card("parameters", f"{found.parameters:,}"),
        Card("multiply-accumulates", _unit(found.total.macs), f"at {sizes}" if sizes else ""),
        Card("bytes read and written", f"{_unit(found.total.bytes)}B"),
    ]  # fmt: skip
    blocks: list[Block] = [
        Cards(cards),
        Notes("Contents", list(_contents(found))),
        Notes("Operators without a kernel", missing, "no kernel: ", "yellow"),
        _ports(found),
        _costs(f"Cost at {sizes or 'the sizes of the model'}", [*found.regions, found.total]),
        replace(_costs("The operators that cost most", found.by_operator), most=MOST_OPERATORS),
        Notes("Remarks", found.notes, "note: ", "yellow"),
    ]
    return Document(name, f"{nodes} nodes with {found.parameters:,} parameters.", blocks)


def _contents(found: Inspection) -> Iterator[str]:
    imports = [
        f"{one.domain} {one.version}" + (f" (its operators need {one.needed}: {one.because})" if one.because else "")
        for one in found.imports
    ]
    yield f"IR version {found.ir_version}; opsets: {', '.join(imports)}"
    weights = [
        f"{row.elements:,} {row.dtype} in {row.tensors} tensor{'s' * (row.tensors != 1)} ({_unit(row.bytes)}B)"
        for row in found.weights
    ]
    yield f"parameters: {found.parameters:,}; constants: {'; '.join(weights) or 'none'}"
    yield f"operators: {', '.join(f'{name} {count}' for name, count in found.operators.items()) or 'none'}"
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.kinds().items())
    yield f"blocks (in the canonical form): {kinds or 'none that is known'}"
    yield f"multiply-accumulates: {found.macs}"
    if (peaks := found.peaks) is not None:
        yield (
            f"this machine: {_unit(peaks.flops)}FLOP/s in a product of matrices, {_unit(peaks.bandwidth)}B/s in a copy, "
            f"so that {peaks.ridge:.1f} FLOP for each byte are needed to be bound by compute ({peaks.processor})"
        )


def _ports(found: Inspection) -> Rows:
    rows = [
        (kind, port.name, port.dtype, _shape(port), ", ".join(port.dynamic))
        for kind, ports in (("input", found.inputs), ("output", found.outputs))
        for port in ports
    ]
    return Rows("Inputs and outputs", ("kind", "name", "type", "shape", "open"), rows)


def _shape(port: Port) -> str:
    return "unknown" if port.shape is None else f"[{', '.join(map(str, port.shape))}]"


def _costs(title: str, regions: Sequence[Region]) -> Rows:
    headings = ("region", "count", "nodes", "MACs", "FLOPs", "bytes", "FLOP/byte", "bound by", "at least")
    rows = [
        (
            one.name, str(one.count), str(one.nodes) + (f" ({one.unknown} unknown)" if one.unknown else ""),
            _unit(one.macs), _unit(one.flops), _unit(one.bytes), f"{one.intensity:.2f}", one.bound,
            "" if one.seconds is None else f"{one.seconds * 1e3:.3f} ms",
        )
        for one in regions
    ]  # fmt: skip
    numbers = frozenset({1, 2, 3, 4, 5, 6, 8})
    return Rows(title, headings, rows, numbers=numbers, spare=("MACs", "count", "bytes", "FLOP/byte"))


def _unit(number: float) -> str:
    """A number with three digits and a unit: `4.09 G`."""
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g} "
