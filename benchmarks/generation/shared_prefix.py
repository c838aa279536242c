"""Prompts with the same first tokens: ``python -m benchmarks.generation.shared_prefix --write``.

A batch of prompts, such as one instruction before several questions, is computed row by row, or with the common tokens once
and copied into the buffers of each row. The times are those of the whole prompt up to its scores, in interleaved rounds of one
generator; the tokens that follow are compared.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import ortfuse
from benchmarks.isolated import call
from benchmarks.results import Results
from ortfuse.api.generator import generator
from ortfuse.targets.processor import processor_in_full

HERE = Path(__file__).parents[1]
GOLDEN = HERE.parent / "golden" / "models"
COMMAND = "python -m benchmarks.generation.shared_prefix --write"
BATCH = 8
OWN = 16
"""How many tokens each prompt has of its own."""

NEW_TOKENS = 8


def shared(path: Path, lengths: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Milliseconds of the prompts of a batch row by row and with the common tokens once, by the number of these."""
    with tempfile.TemporaryDirectory() as folder:
        generator(path, folder, max_length=max(lengths) + OWN + NEW_TOKENS + 1, last_logits=True, new_tokens=20)
        model = ortfuse.Generator(folder)
        found: dict[str, Any] = {}
        for length in lengths:
            random = np.random.default_rng(length)
            common = random.integers(3, 100, length).tolist()
            prompts = [[*common, *row] for row in random.integers(3, 100, (BATCH, OWN)).tolist()]
            times: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(rounds + 1):
                for once, taken in times.items():
                    started = time.perf_counter()
                    model.generate(prompts, max_new_tokens=1, shared_prefix=once)
                    taken.append(time.perf_counter() - started)
            apart, once = (times[one][1:] for one in (False, True))  # the first round allocates the buffers
            tokens = [model.generate(prompts, max_new_tokens=NEW_TOKENS, shared_prefix=one) for one in times]
            found[str(length)] = {
                "apart_ms": round(statistics.median(apart) * 1e3, 2),
                "once_ms": round(statistics.median(once) * 1e3, 2),
                "speedup": round(statistics.median(a / b for a, b in zip(apart, once, strict=True)), 3),
                "same_tokens": tokens[0] == tokens[1],
            }
        return found


def main(
    folder: Annotated[Path, typer.Option("--models", help="Folder of decoders.")] = HERE / ".decoders_full",
    names: Annotated[str, typer.Option("--only", help="Beginnings of names, with commas.")] = "gpt2,llama",
    lengths: Annotated[str, typer.Option(help="Numbers of common tokens.")] = "64,256",
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 5,
    quick: Annotated[bool, typer.Option(help="One golden model, one round; stores nothing.")] = False,
    write: Annotated[bool, typer.Option(help="Store the result.")] = False,
    output: Annotated[Path | None, typer.Option(help="File of the raw result.")] = None,
) -> None:
    """Measure batches of prompts whose common tokens are computed once."""
    if quick:
        folder, names, lengths, rounds = GOLDEN, "llama_cache.sdpa.ts", "12", 1
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.onnx")):
        if path.stem.startswith(tuple(names.split(","))):
            outcome = call(shared, path, tuple(int(one) for one in lengths.split(",")), rounds, limit=900)
            found[path.stem] = outcome.value if outcome.error is None else {"failed": outcome.error}
            print(path.stem, found[path.stem], flush=True)
    result = {"batch": BATCH, "own tokens": OWN, "models": found}
    if write and not quick:
        Results("generation.shared_prefix", output, processor_in_full()).store(COMMAND, result, raw=result)
    differ = [
        name for name, one in found.items() if "failed" in one or not all(at["same_tokens"] for at in one.values())
    ]
    if differ:
        print("failed, or other tokens:", ", ".join(differ))
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
