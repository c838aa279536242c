"""Exports some 300 small models that no golden model has: ``python -m benchmarks.exports.varied [NAME ...]``.

Architectures of transformers and modules in styles that people write, by both exporters at opsets 11 to 24. Names of files say
exporter and opset: ``dab_detr.dynamo21.onnx``. What was tried is recorded, so that a stopped run goes on.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.exports.varied_recipes import Recipe, Variant, export
from benchmarks.isolated import call, preload

SOURCES = (
    *("varied_functions", "varied_vision", "varied_networks", "varied_sequences", "varied_tables", "varied_audio"),
    *("varied_diffusion", "varied_shrunk"),
)
FORMULAS = (
    *(
        "varied_modules",
        "varied_activations",
        "varied_normalisations",
        "varied_heads",
        "varied_products",
        "varied_pictures",
    ),
    *("varied_attention", "varied_masks", "varied_rotary", "varied_conditions", "varied_exact_forms", "varied_boxes"),
    *("varied_steps", "varied_quantised"),
)
"""Modules with formulas as papers and repositories spell them, for `benchmarks.rules`; only exported where they are named."""
OPSETS = {"ts": (17, 11, 14, 13, 18, 12, 20, 16, 15, 19), "dynamo": (18, 21, 23, 20, 24, 19, 22)}
TRIED = "TRIED.json"
MEMORY = 6 << 30
"""Bytes of address space for one export: a configuration that cannot be made small fails."""


def recipes(source: str) -> dict[str, Recipe]:
    """The recipes of a module of this folder."""
    found: dict[str, Recipe] = importlib.import_module(f"benchmarks.exports.{source}").RECIPES
    return found


def variants(source: str, turn: int) -> Iterator[Variant]:
    """One variant of each recipe: its exporter and opset change from recipe to recipe, and from turn to turn."""
    for number, name in enumerate(recipes(source)):
        exporter = "dynamo" if (number + turn) % 3 == 0 else "ts"
        opsets = OPSETS[exporter]
        opset = opsets[(number // 2 + 3 * turn) % len(opsets)]
        yield Variant(name, exporter, opset, dynamic=(number // 2 + turn) % 3 != 2)  # type: ignore[arg-type]


def named(name: str) -> tuple[str, Variant] | None:
    """The module and the variant of a file's name (`gelu_new.ts17`); `None` if it is none, or no module has the recipe."""
    found = re.fullmatch(r"(\w+)\.(ts|dynamo)(\d+)(\.fixed)?", name)
    if found is None:
        return None
    recipe, exporter, opset, fixed = found.groups()
    source = next((one for one in (*FORMULAS, *SOURCES) if recipe in recipes(one)), None)
    return None if source is None else (source, Variant(recipe, exporter, int(opset), dynamic=fixed is None))  # type: ignore[arg-type]


def export_one(source: str, variant: Variant, folder: Path) -> str:
    """Export a variant in this process; see `varied_recipes.export`."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for name in ("torch.onnx", "transformers", "onnxscript"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return export(recipes(source)[variant.recipe], variant, folder)


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Recipes, or variants (`gelu_new.ts17`), to export; all by default.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where to write the models.")] = Path(__file__).parents[1] / ".varied",
    source: Annotated[list[str] | None, typer.Option(help="Modules with recipes; all by default.")] = None,
    turns: Annotated[int, typer.Option(help="Variants of each recipe, with other exporters and opsets.")] = 1,
    first: Annotated[int, typer.Option(help="The first turn.")] = 0,
    exporter: Annotated[str, typer.Option(help="Only variants of this exporter, `ts` or `dynamo`.")] = "",
    limit: Annotated[float, typer.Option(help="Seconds that one export may take.")] = 240.0,
    most: Annotated[float, typer.Option(help="Minutes for all.")] = 600.0,
) -> None:
    """Export; a line for each, failures with their reason."""
    chosen = source or list(SOURCES)
    os.environ["ORTFUSE_EXPORTER"] = exporter
    preload(["torch", "transformers", "onnx", "onnxruntime", "onnxscript", "benchmarks.exports.varied_warm"])
    folder.mkdir(parents=True, exist_ok=True)
    ledger, until = folder / TRIED, time.monotonic() + 60 * most
    exact = [found for name in names or () if (found := named(name)) is not None]
    turned = (
        (one, variant) for turn in range(first, first + turns) for one in chosen for variant in variants(one, turn)
    )
    for one, variant in exact or turned:
        tried = json.loads(ledger.read_text()) if ledger.exists() else {}
        if exporter not in ("", variant.exporter):
            continue
        if not exact and ((names and variant.recipe not in names) or (not names and variant.name in tried)):
            continue
        if time.monotonic() > until:
            return
        outcome = call(export_one, one, variant, folder, limit=limit)
        line = outcome.value if outcome.error is None else f"FAILED {_short(outcome.error)}"
        tried[variant.name] = line
        ledger.write_text(json.dumps(dict(sorted(tried.items())), indent=1) + "\n")
        print(f"{variant.name}: {line}, {outcome.seconds:.0f} s", flush=True)


def _short(reason: str) -> str:
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|\S*/site-packages/", "", reason).split())[:240]


if __name__ == "__main__":
    typer.run(main)
