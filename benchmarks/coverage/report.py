"""Tables of the coverage benchmark, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.coverage.sites import FAMILIES
from benchmarks.peers import TOOLS

GROUPS = {
    "ts": ("ts", "ts14", "tsbn"),
    "dynamo": ("dynamo",),
    "raw": ("raw",),
}
TITLES = {
    "ts": "TorchScript exporter",
    "dynamo": "torch.export exporter",
    "raw": "torch.export exporter without its optimizer",
}
MOST_REASONS = 4
"""Reasons shown for each family and model; the last one, about the operators that are left, comes in any case."""
ROWS = ("original", *TOOLS)
NAMES = {
    "original": "as exported",
    "runtime": "ONNX Runtime's session",
    "transformers": "onnxruntime.transformers, best kind",
    "onnxscript": "onnxscript optimize_for_ort",
}


def totals(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each exporter and tool the sites fused of each family, and how many results are broken or failed.

    Of a file no more sites count than PyTorch made calls, and none where the result is broken.
    """
    found: dict[str, Any] = {}
    for group, exporters in GROUPS.items():
        files = [entry for entry in entries if entry["exporter"] in exporters]
        if files:
            sites = {family: sum(entry["sites"][family] for entry in files) for family in FAMILIES}
            found[group] = {
                "files": len(files),
                "sites": sites,
                "tools": {tool: _sums(files, tool) for tool in _ran(files)},
            }
    return found


def _ran(files: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tools that there are results of for every file."""
    return [tool for tool in ROWS if all(tool in entry["tools"] for entry in files)]


def _sums(files: Sequence[Mapping[str, Any]], tool: str) -> dict[str, int]:
    usable = [entry for entry in files if entry["tools"][tool]["status"] in ("ok", "unchecked")]
    sums = {
        family: sum(min(entry["tools"][tool]["fused"][family], entry["sites"][family]) for entry in usable)
        for family in FAMILIES
    }
    statuses = [entry["tools"][tool]["status"] for entry in files]
    return sums | {status: statuses.count(status) for status in ("broken", "failed", "unchecked")}


def _shown(group: Mapping[str, Any]) -> list[str]:
    """The families that occur."""
    return [family for family in FAMILIES if group["sites"][family]]


def _rows(group: Mapping[str, Any]) -> Iterator[list[str]]:
    for tool, sums in group["tools"].items():
        cells = [f"{sums[family]}/{group['sites'][family]}" for family in _shown(group)]
        yield [NAMES.get(tool, tool), *cells, str(sums["broken"]), str(sums["failed"])]


def show(console: Console, sums: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> None:
    """Print the totals, and the calls without an operator in the result of ortfuse."""
    for name, group in sums.items():
        made = Table(title=f"{TITLES[name]}, {group['files']} models", title_justify="left")
        for heading in ("tool", *_shown(group), "broken", "failed"):
            made.add_column(heading, justify="left" if heading == "tool" else "right")
        for row in _rows(group):
            made.add_row(*row)
        console.print(made)
    made = Table(title="What ortfuse misses", title_justify="left")
    for heading in ("model", "family", "sites", "rule", "stopped by"):
        made.add_column(heading, overflow="fold")
    for row in _missed(files):
        made.add_row(*row)
    if made.row_count:
        console.print(made, markup=False)


def _missed(files: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str, str]]:
    for entry in files:
        for family, count in entry.get("missing", {}).items():
            reasons = entry["misses"].get(family, [])
            for reason in [*reasons[:MOST_REASONS], *reasons[MOST_REASONS:][-1:]]:
                yield (
                    entry["model"],
                    family,
                    f"{reason['sites'] or ''} of {count}".strip(),
                    reason["rule"],
                    reason["reason"],
                )
            if not reasons:
                yield entry["model"], family, str(count), "", entry["misses"].get("error", "no rule came near")


def markdown(command: str, run: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> str:
    """Return the totals, the broken and failed results, and the calls that ortfuse misses.

    Args:
        command: The command that measured them.
        run: The run as it stands in the summary.
        files: The raw rows.
    """
    lines = [
        "# Coverage",
        "",
        f"Written by `{command}`. "
        + ", ".join(f"{name} {number}" for name, number in run["versions"].items())
        + f"; {run['machine']}.",
        "",
        "Sites are calls that hooks on the PyTorch model counted when it was exported; a site counts as fused if the result",
        "has an operator for it. Nothing counts in a broken result: one that does not load, refuses inputs that the original",
        "accepts, or differs from it beyond the tolerance of `ortfuse verify`. Failed: the tool raised, crashed or took longer",
        "than its limit, and wrote nothing. The transformers optimizer is told heads and hidden size, and taken with the kind of",
        f"model, of {', '.join(run['result']['transformers_kinds'])}, that fuses most without breaking the model.",
        "",
        "Some calls count as missed that nobody can fuse: 7 of the 26 Swish calls in a U-Net are the same call on the same",
        "tensor, which the exporters merged; DeBERTa normalises a table of constants, which is folded; and group",
        "normalisation has no kernel on the CPU.",
    ]
    for name, group in run["result"]["totals"].items():
        lines += ["", f"## {TITLES[name]}, {group['files']} models", ""]
        lines += _table(["tool", *_shown(group), "broken", "failed"], _rows(group))
    lines += ["", "## Broken and failed results", ""]
    bad = [
        [NAMES.get(tool, tool), entry["model"], it["status"], it.get("reason", "")[:200]]
        for tool in _ran(files)
        for entry in files
        if (it := entry["tools"][tool])["status"] in ("broken", "failed")
    ]
    lines += _table(["tool", "model", "", "why"], bad) if bad else ["None."]
    lines += ["", "## What ortfuse misses", ""]
    missed = list(_missed(files))
    lines += _table(["model", "family", "sites", "nearest rule", "stopped by"], missed) if missed else ["Nothing."]
    return "\n".join(lines) + "\n"


def _table(headings: Sequence[str], rows: Any) -> list[str]:
    made = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    return made + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
