"""The report of `ortfuse inspect` for people: what is in a model, and what it costs here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ortfuse.report.terminal.console import show_notes
from ortfuse.report.terminal.long_names import Names
from ortfuse.runtime.bench.fit_table_to_terminal import Fitting

if TYPE_CHECKING:
    from ortfuse.inspection import Inspection, Port, Region

MOST_OPERATORS = 12
"""The operators whose cost is shown; --json has them all."""

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def show_inspection(console: Console, found: Inspection) -> None:
    """Print the whole inspection."""
    _show_signature(console, found)
    _show_weights(console, found)
    operators = ", ".join(f"{name} {count}" for name, count in found.operators.items())
    console.print(f"operators: {operators or 'none'}", markup=False, highlight=False)
    for detour in found.detours:
        instead = detour.instead or "it does not load the model"
        text = f"no kernel: {detour.operator}, {len(detour.nodes)} nodes such as '{detour.nodes[0]}': {detour.reason}; {instead}"
        console.print(text, style="yellow", markup=False, highlight=False)
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.kinds().items())
    console.print(f"blocks (in the canonical form): {kinds or 'none that is known'}", markup=False, highlight=False)
    _show_costs(console, found)
    show_notes(console, found.notes)


def _show_signature(console: Console, found: Inspection) -> None:
    imports = []
    for one in found.imports:
        needed = f" (its operators need {one.needed}: {one.because})" if one.because else ""
        imports.append(f"{one.domain} {one.version}{needed}")
    console.print(f"IR version {found.ir_version}; opsets: {', '.join(imports)}", markup=False, highlight=False)
    made = Table(title="Inputs and outputs", title_justify="left")
    for heading in ("", "name", "type", "shape", "open"):
        made.add_column(heading, overflow="fold")
    for what, ports in (("input", found.inputs), ("output", found.outputs)):
        for port in ports:
            made.add_row(what, Names(port.name), port.dtype, Names(_shape(port)), Names(", ".join(port.dynamic)))
    console.print(made)


def _shape(port: Port) -> str:
    return "unknown" if port.shape is None else f"[{', '.join(map(str, port.shape))}]"


def _show_weights(console: Console, found: Inspection) -> None:
    rows = [
        f"{row.elements:,} {row.dtype} in {row.tensors} tensor{'s' * (row.tensors != 1)} ({_unit(row.bytes)}B)"
        for row in found.weights
    ]
    console.print(f"parameters: {found.parameters:,}; constants: {'; '.join(rows) or 'none'}", highlight=False)


def _show_costs(console: Console, found: Inspection) -> None:
    sizes = ", ".join(f"{name}={size}" for name, size in found.sizes.items()) or "the sizes of the model"
    console.print(f"multiply-accumulates: {found.macs}", markup=False, highlight=False)
    if found.peaks is not None:
        peaks = found.peaks
        console.print(
            f"this machine: {_unit(peaks.flops)}FLOP/s in a product of matrices, {_unit(peaks.bandwidth)}B/s in a copy, "
            f"so that {peaks.ridge:.1f} FLOP for each byte are needed to be bound by compute ({peaks.processor})",
            markup=False,
            highlight=False,
        )
    _show_regions(console, f"Cost at {sizes}", [*found.regions, found.total])
    _show_regions(console, "The operators that cost most", found.by_operator[:MOST_OPERATORS])


def _show_regions(console: Console, title: str, regions: Sequence[Region]) -> None:
    headings = ("region", "count", "nodes", "MACs", "FLOPs", "bytes", "FLOP/byte", "bound by", "at least")
    rows = [tuple(_row(region)) for region in regions]
    console.print(Fitting(title, headings, rows, ("MACs", "count", "bytes", "FLOP/byte")))


def _row(region: Region) -> Iterable[str]:
    yield region.name
    yield str(region.count)
    yield str(region.nodes) + (f" ({region.unknown} unknown)" if region.unknown else "")
    for number in (region.macs, region.flops, region.bytes):
        yield _unit(number)
    yield f"{region.intensity:.2f}"
    yield region.bound
    yield "" if region.seconds is None else f"{region.seconds * 1e3:.3f} ms"


def _unit(number: float) -> str:
    """A number with three digits and a unit: `4.09 G`."""
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g} "
