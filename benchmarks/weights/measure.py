"""Weights from file to file: time against a plain copy, memory, and models larger than memory.

    python -m benchmarks.exports.full bert
    python -m benchmarks.weights --model benchmarks/.models/bert.sdpa.ts.onnx --peers --decoder 4 --decoder 40 --write

A model in one file is copied and optimised in turn, each into a new file in the same folder, after the file was read once
(so both find it in the page cache) and nothing waits to be written. Both end with an fsync; a copy is timed without it
too. Every optimisation is a fresh process (`file_to_file.py`). Times need a machine on which nothing else runs; the
load average of the machine is stored with them, and a run of its own on one core makes it 1.

Decoders are exports by PyTorch with external data (`decoder.py`) in three forms: with weights as MatMul takes them, so
that no weight changes, copied or linked, and with weights behind Transpose nodes, so that nearly every one does. From 8 GB on
their data files are sparse: holes, with a page of random bytes in each mebibyte; copies of them are not sparse. Every result is
checked by onnx.checker and loaded, its fused operators are counted, and the bytes of its largest weights are compared with the
original's. A result of less than a gigabyte is verified, too.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnx_ir as ir
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.peers import PACKAGES
from benchmarks.results import Results
from benchmarks.weights.decoder import make_decoder
from benchmarks.weights.file_to_file import measure
from ortfuse import load, verify

PEERS = ("onnxslim", "onnxscript")
FORMS = ("copied", "linked", "transposed")
SPARSE_FROM = 8.0
"""Gigabytes from which on the data of a decoder are sparse."""
_FIGURES = (
    "process_seconds",
    "cpu_seconds",
    "import_seconds",
    "seconds",
    "engine_seconds",
    "RssAnon",
    "RssFile",
    "VmHWM",
)


def compare_with_copy(model: Path, folder: Path, tools: Sequence[str], rounds: int) -> dict[str, Any]:
    """Medians over rounds of copying a model file and of optimising it with each tool, in turn."""
    with model.open("rb") as file:
        while file.read(1 << 24):
            pass
    copies: list[tuple[float, float]] = []
    runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in tools}
    target = folder / "result.onnx"
    measure("ortfuse", model, target)  # compiles the modules
    for _ in range(rounds):
        _settle(folder)
        copies.append(_copy(model, target))
        for tool in tools:
            _settle(folder)
            runs[tool].append(measure(tool, model, target))
    _settle(folder)
    plain, synced = (statistics.median(times) for times in zip(*copies, strict=True))
    found: dict[str, Any] = {
        "model": model.name,
        "bytes": model.stat().st_size,
        "rounds": rounds,
        "load_average": os.getloadavg()[0],
        "copy_seconds": plain,
        "copy_and_sync_seconds": synced,
        "tools": {tool: _medians(each) for tool, each in runs.items()},
    }
    own = [run for run in runs["ortfuse"] if "error" not in run]
    if own:
        ratios = [(run["seconds"] - run["engine_seconds"]) / copy for run, (_, copy) in zip(own, copies, strict=False)]
        found["times_of_a_copy_beside_the_engine"] = statistics.median(ratios)
    return found


def _settle(folder: Path) -> None:
    """Delete what the last run wrote, and wait until nothing is left to be written."""
    for file in folder.iterdir():
        file.unlink()
    os.sync()


def _copy(source: Path, target: Path) -> tuple[float, float]:
    """Seconds for a copy, and with what it takes until it is on the disk."""
    started = time.perf_counter()
    shutil.copyfile(source, target)
    copied = time.perf_counter()
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return copied - started, time.perf_counter() - started


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if errors := [run["error"] for run in runs if "error" in run]:
        return {"error": errors[0]}
    present = [name for name in _FIGURES if name in runs[0]]
    return {name: statistics.median(run[name] for run in runs) for name in present}


def decoder(gigabytes: float, folder: Path, form: str) -> dict[str, Any]:
    """Make, optimise and check a decoder in one of the `FORMS`; its files are deleted afterwards."""
    source, target = folder / "decoder.onnx", folder / "result.onnx"
    written = gigabytes < SPARSE_FROM
    made = make_decoder(source, gigabytes, written=written, transposed=form == "transposed")
    os.sync()
    found = measure("ortfuse, linked" if form == "linked" else "ortfuse", source, target)
    if "error" not in found:
        found |= _checked(source, target, made["layers"], gigabytes)
    _settle(folder)
    load = {"load_average": os.getloadavg()[0]}
    return {"gigabytes": gigabytes, "form": form, "sparse": not written, **load, **made, **found}


def _checked(source: Path, target: Path, layers: int, gigabytes: float) -> dict[str, Any]:
    before, after = load(source), load(target)
    data = [path.with_name(f"{path.name}.data") for path in (source, target)]
    linked = data[0].samefile(data[1])
    if gigabytes < 1:
        verified = verify(before, after).ok
    if linked:
        data[0].unlink()  # the checker accepts no file with two names
    onnx.checker.check_model(target)
    fused = [node.op_type for node in after.graph]
    counts = {kind: fused.count(kind) for kind in ("Attention", "RotaryEmbedding", "RMSNormalization")}
    found: dict[str, Any] = {
        "fused": counts,
        "all_fused": counts == {"Attention": layers, "RotaryEmbedding": 2 * layers, "RMSNormalization": 2 * layers + 1},
        "linked": linked,
        "weights_compared": _compare_weights(before, after),
    }
    return found | ({"verified": verified} if gigabytes < 1 else {})


def _compare_weights(before: ir.Model, after: ir.Model) -> int:
    """Compare the bytes of the largest weights of each shape with those before, as they were or transposed; count them.

    Raises:
        ValueError: One has other bytes.
    """
    originals = {name: value.const_value for name, value in before.graph.initializers.items()}
    producers = {node.outputs[0].name: node for node in before.graph if node.op_type == "Transpose"}
    seen: set[tuple[int, ...]] = set()
    for name, value in after.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < 1 << 20 or tuple(tensor.shape.numpy()) in seen:
            continue
        seen.add(tuple(tensor.shape.numpy()))
        node = producers.get(name)
        expected = originals[node.inputs[0].name if node is not None else name]  # type: ignore[union-attr,index]
        assert expected is not None
        array = expected.numpy() if node is None else expected.numpy().T
        if not np.array_equal(array.view(np.uint32), tensor.numpy().view(np.uint32)):
            raise ValueError(f"the weight '{name}' changed")
    return len(seen)


def _show(console: Console, rows: Sequence[dict[str, Any]], title: str) -> None:
    table = Table(title=title, title_justify="left")
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        values = (row.get(heading, "") for heading in headings)
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in values))
    console.print(table)


def main(
    model: Annotated[list[Path] | None, typer.Option(help="A model in one file; may be given several times.")] = None,
    decoders: Annotated[
        list[float] | None, typer.Option("--decoder", help="Gigabytes of a decoder; may be given several times.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Runs of each tool on each model.")] = 5,
    peers: Annotated[bool, typer.Option(help="Measure onnxslim and onnxscript too.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Where to write; on the disk of the models by default.")] = None,
    write: Annotated[bool, typer.Option(help="Write the summary.")] = False,
) -> None:
    """Measure, print and, with --write, store."""
    console = Console(width=180)
    tools = ("ortfuse", *PEERS) if peers else ("ortfuse",)
    single, large = [], []
    beside = folder or (model[0].parent if model else Path.cwd())
    with tempfile.TemporaryDirectory(dir=beside) as name:
        scratch = Path(name)
        for path in model or ():
            single.append(compare_with_copy(path, scratch, tools, rounds))
            rows = [{"tool": tool, **figures} for tool, figures in single[-1]["tools"].items()]
            _show(console, rows, f"{path.name}: seconds, and MB at the peak")
            console.print({key: value for key, value in single[-1].items() if key != "tools"})
        for gigabytes in decoders or ():
            for form in FORMS:
                large.append(decoder(gigabytes, scratch, form))
                console.print(large[-1])
    if write:
        store(single, large, rounds)


def store(single: Sequence[dict[str, Any]], large: Sequence[dict[str, Any]], rounds: int) -> None:
    """Write the summary; models and decoders that were not measured now stay as they are there."""
    results = Results("weights")
    known = {"single_file": [], "decoders": [], **results.result()}
    merged = {
        "single_file": {row["model"]: row for row in [*known["single_file"], *single]},
        "decoders": {(row["gigabytes"], row["form"]): row for row in [*known["decoders"], *large]},
    }
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    command = f"python -m benchmarks.weights --model FILE --peers --rounds {rounds} --decoder GIGABYTES --write"
    found = {"memory_gigabytes": round(memory), **{key: list(rows.values()) for key, rows in merged.items()}}
    results.store(command, found, packages=PACKAGES)
