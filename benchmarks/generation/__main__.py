"""Whole generations: ``python -m benchmarks.generation [--equal FOLDER] [--speed FOLDER] [--write]``.

With ``--equal``, each decoder of a folder is made a generator, and its generations are compared with those of the plain loop: 200
tokens after each of three prompts, and a batch of prompts of several lengths against single ones. With ``--speed``, the time
of a step is measured after 32, 256, 1,000 and 4,000 tokens, and the time of the prompt, for the export and the generator in
interleaved rounds. ``python -m benchmarks.generation.exports [--full]`` makes the folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.generation.measures import VARIANTS, equal, speed
from benchmarks.isolated import call
from benchmarks.results import Results
from ortfuse.targets.processor import processor_in_full

HERE = Path(__file__).parents[1]
GOLDEN = HERE.parent / "golden" / "models"
COMMAND = "python -m benchmarks.generation --equal benchmarks/.decoders --speed benchmarks/.decoders_full --write"
MARKS = (32, 256, 1000, 4000)


def _summary(equals: Mapping[str, Any], speeds: Mapping[str, Any]) -> dict[str, Any]:
    made = [one for one in equals.values() if "equal" in one]
    return {
        "decoders": len(equals),
        "made": len(made),
        "equal": sum(one["equal"] for one in made),
        "batches_equal": sum(one.get("batch", False) for one in made),
        "steps": sum(one["steps"] for one in made),
        "refused": {name: one["refused"] for name, one in equals.items() if "refused" in one},
        "speed": dict(speeds),
    }


def main(
    equals: Annotated[Path | None, typer.Option("--equal", help="Folder of decoders to compare.")] = None,
    speeds: Annotated[Path | None, typer.Option("--speed", help="Folder of decoders to measure.")] = None,
    names: Annotated[str, typer.Option("--only", help="Beginnings of names, with commas.")] = "",
    marks: Annotated[str, typer.Option(help="Numbers of cached tokens to measure at.")] = ",".join(map(str, MARKS)),
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 3,
    variants: Annotated[str, typer.Option(help="Generators to measure, with commas.")] = ",".join(VARIANTS),
    quick: Annotated[bool, typer.Option(help="Two golden models, little of each; stores nothing.")] = False,
    write: Annotated[bool, typer.Option(help="Store the result.")] = False,
    output: Annotated[Path | None, typer.Option(help="File of the raw result.")] = None,
) -> None:
    """Compare and measure generations."""
    chosen = tuple(one for one in names.split(",") if one)
    if quick:
        equals, chosen, marks, rounds = GOLDEN, ("llama_cache.sdpa.ts", "gpt2_cache.sdpa.dynamo"), "8,24", 1
        variants = "generator,int4_int8_caches"
    found: dict[str, dict[str, Any]] = {"equal": {}, "speed": {}}
    for path in _models(equals, chosen):
        outcome = call(equal, path, 256, limit=600)
        found["equal"][path.stem] = outcome.value if outcome.error is None else {"refused": outcome.error}
        print(path.stem, found["equal"][path.stem], flush=True)
    at = tuple(int(one) for one in marks.split(","))
    for path in _models(GOLDEN if quick else speeds, chosen):
        outcome = call(speed, path, rounds, at, tuple(variants.split(",")), limit=2400)
        found["speed"][path.stem] = outcome.value if outcome.error is None else {"failed": outcome.error}
        print(path.stem, found["speed"][path.stem], flush=True)
    wrong = [name for name, one in found["equal"].items() if one.get("equal") is False or one.get("batch") is False]
    if write and not quick:
        result = _summary(found["equal"], found["speed"])
        Results("generation", output, processor_in_full()).store(COMMAND, result, raw=found)
    if wrong:
        print("differ:", ", ".join(wrong))
        raise typer.Exit(1)


def _models(folder: Path | None, chosen: tuple[str, ...]) -> list[Path]:
    if folder is None:
        return []
    return [path for path in sorted(folder.glob("*.onnx")) if not chosen or path.stem.startswith(chosen)]


if __name__ == "__main__":
    typer.run(main)
