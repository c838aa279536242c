"""Encoders without padding: are they right whatever hidden tokens hold, and how fast are they at several fills?

    python -m benchmarks.padding_free --write                       # exports what is missing, then all models
    python -m benchmarks.padding_free bert.sdpa.ts t5_encoder       # these alone
    python -m benchmarks.padding_free --golden --write              # only whether golden encoders are right

Each encoder is optimised with and without `--padding-free`. Both run side by side on batches of 16 sequences of up to 128 tokens,
of which the mask shows 30 %, 55 % and all. Each golden encoder is compared with its original at several fills, left-padded and
with holes, with random tokens, NaN and huge numbers at hidden positions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import ortfuse
from benchmarks.jobs import ROOT
from benchmarks.models import GOLDEN
from benchmarks.results import Results
from ortfuse.ir.hidden_tokens import hidden_tokens
from ortfuse.targets.processor import processor_in_full

COMMAND = "python -m benchmarks.padding_free --write"
MODELS = ROOT / "benchmarks" / ".padding"
FILLS = (0.3, 0.55, 1.0)
SIZES: Mapping[str, int] = {"batch": 16, "sequence": 128}
SMALL: Mapping[str, int] = {"batch": 4, "sequence": 32}
"""Sizes at which models are measured, and at which golden ones are."""

LONGEST: Mapping[str, int] = {"clip_text": 77}
"""The longest texts of models that take no longer ones."""

ENCODERS = ("bert.", "bert_attentions.", "roberta.", "deberta.", "t5_encoder.", "clip_text.")


def right(path: Path) -> str:
    """Return `right`, `wrong`, or the reason why padding is not removed, of a golden model."""
    try:
        result = ortfuse.optimize(path, padding_free=True, verify="whole")
    except ortfuse.WrongResultError as error:
        return f"wrong: {error}"
    refused = [note for note in result.report.notes if note.startswith("padding is not removed")]
    return refused[0] if refused else "right"


def speedups(path: Path, sizes: Mapping[str, int], rounds: int, threads: int) -> dict[str, Any]:
    """Return, for each fill, how many times as fast a model is without padding, with the interval, beside the padded result."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="padding", dir=path.parent) as folder:
        padded, packed = Path(folder) / "padded.onnx", Path(folder) / "packed.onnx"
        ortfuse.optimize(path, output=padded, link=True)
        result = ortfuse.optimize(path, output=packed, link=True, padding_free=True)
        if not hidden_tokens(ortfuse.load(packed)):
            return {"refused": next(note for note in result.report.notes if note.startswith("padding is not removed"))}
        for fill in FILLS:
            rows = ortfuse.benchmark(
                {"padded": padded, "packed": packed},
                sizes=sizes,
                fill=fill,
                rounds=rounds,
                threads=threads,
                bench_budget=60.0,
            ).latency
            last = rows[-1]
            found[f"{fill:g}"] = {
                "ms": [row.median_ms for row in rows],
                "speedup": last.speedup,
                "interval": last.speedup_bounds,
            }
    return found


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Leading parts of names; all models by default.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder with the models; missing ones are exported.")] = MODELS,
    golden: Annotated[bool, typer.Option(help="Golden models alone.")] = False,
    quick: Annotated[bool, typer.Option(help="One golden model, measured in a few rounds.")] = False,
    rounds: Annotated[int, typer.Option(help="The least number of rounds.")] = 10,
    threads: Annotated[int, typer.Option(help="Threads of the runtime.")] = 2,
    write: Annotated[bool, typer.Option(help="Store the result.")] = False,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
) -> None:
    """Check, measure, print, and store."""
    console, results = Console(), Results("padding_free", output, processor_in_full())
    checked, measured = results.result().get("golden", {}), results.rows()
    if quick:
        checked = {"bert.sdpa.ts": right(GOLDEN / "bert.sdpa.ts.onnx")}
        measured = {"bert.sdpa.ts": speedups(GOLDEN / "bert.sdpa.ts.onnx", SMALL, 3, threads)}
    elif not names:
        checked = {path.stem: right(path) for path in sorted(GOLDEN.glob("*.onnx")) if path.name.startswith(ENCODERS)}
    if not quick and not golden:
        for path in _models(folder, names or []):
            longest = LONGEST.get(path.name.partition(".")[0], SIZES["sequence"])
            measured[path.stem] = speedups(path, {**SIZES, "sequence": longest}, rounds, threads)
            _show(console, checked, measured)
    _show(console, checked, measured)
    if write:
        wrong = [name for name, found in checked.items() if found.startswith("wrong")]
        said = {"threads": threads, "sizes": dict(SIZES), "wrong": wrong, "golden": checked, "models": measured}
        results.store(COMMAND, said, raw=measured)


def _models(folder: Path, names: Sequence[str]) -> list[Path]:
    """The models that names select, exported where they are missing."""
    from benchmarks.exports.each import export_each

    export_each(
        "benchmarks.padding_free.cases", names, folder, tolerance=1e-4, relative=True, limit=1800.0, fresh=False
    )
    return [path for path in sorted(folder.glob("*.onnx")) if not names or path.name.startswith(tuple(names))]


def _show(console: Console, checked: Mapping[str, str], measured: Mapping[str, Any]) -> None:
    table = Table("model", *(f"fill {fill:g}" for fill in FILLS))
    for name, found in measured.items():
        row = [found.get(f"{fill:g}") for fill in FILLS]
        table.add_row(name, *(str(found.get("refused", "")) if one is None else f"{one['speedup']:.2f}" for one in row))
    console.print(table)
    for name, found in checked.items():
        console.print(f"{name}: {found}", highlight=False)
