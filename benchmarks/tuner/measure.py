"""The tuner beside random search with the same budget, and beside each fixed pass list in a default session.

    python -m benchmarks.exports.full
    python -m benchmarks.tuner                          # every model that the summary does not have yet
    python -m benchmarks.tuner bert.sdpa.ts --budget 60 # measure these again
    python -m benchmarks.tuner --goldens --minutes 10   # ten small models in ten minutes
    python -m benchmarks.tuner --max-error 0.05         # lower precision too, under a bound; kept apart

Random search knows nothing: it draws every choice from the first on, and ends with what optimize makes only if it drew
that. Rows that say otherwise under "random begins with" were measured with that result as the first choice.

Both searches run one after the other. Then their results, the original and the result of every fixed list run interleaved, each
in a process of its own. The same model in the same session is measured once; a fast model runs more often, until its speedup is
known. Numbers are stored model by model.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.models import FULL_SIZE, GOLDEN, sizes_of
from benchmarks.results import PACKAGES, Results
from ortfuse.errors import OrtfuseError
from ortfuse.runtime.bench import Candidate
from ortfuse.runtime.bench.session_timing import Enough

COMMAND = "python -m benchmarks.tuner"
SHARES = 2.8
"""The time for a model, in budgets: two searches, and what the comparison takes."""
SHORTEST = 5.0
DEFAULTS = (
    "bert.sdpa.ts",
    "minilm.sdpa.ts",
    "gpt2_step.sdpa.ts",
    "llama_step.sdpa.ts",
    "swin.sdpa.ts",
    "segformer.sdpa.ts",
    "vit.sdpa.ts",
    "resnet50.ts",
    "whisper_encoder.sdpa.ts",
    "t5_step.sdpa.ts",
)
GOLDENS = (
    "bert.sdpa.ts",
    "gpt2_cache.sdpa.ts",
    "llama.sdpa.dynamo",
    "t5_encoder.sdpa.ts",
    "whisper_encoder.sdpa.ts",
    "vit.sdpa.dynamo",
    "convnext.ts",
    "resnet.ts",
    "segformer.sdpa.ts",
    "lstm.ts",
)
LISTS = ("basic", "extended", "all", "auto")
NOISE = 0.98
MOST = 400
"""The rounds of the comparison at most, where a model takes less than a millisecond."""


def one_model(
    source: Path, sizes: Mapping[str, int], budget: float, rounds: int, threads: int, max_error: float | None
) -> dict[str, Any]:
    """Both searches and every list on one model, measured side by side."""
    from ortfuse import Constraints, Options, optimize, tune
    from ortfuse.api.assess_optimization import inputs_to_measure
    from ortfuse.io.load_and_save import load
    from ortfuse.runtime.bench import SessionMeter
    from ortfuse.runtime.session_settings import stored_config

    started = time.monotonic()
    options = Options(sizes=dict(sizes), bench=True, threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        candidates = {"original": Candidate(source)}
        trials = {}
        for sampler in ("tpe", "random"):
            target = place / f"{sampler}.onnx"
            began = time.monotonic()
            os.environ["XDG_CACHE_HOME"] = str(place / f"{sampler} cache")  # neither finds what the other measured
            limits = Constraints(max_error=max_error)
            tuned = tune(source, options, output=target, budget=budget, sampler=sampler, constraints=limits)
            seconds = round(time.monotonic() - began, 1)
            trials[sampler] = {
                "trials": len(tuned.outcome.trials),
                "seconds": seconds,
                "choice": dict(tuned.outcome.best.choice),
                "error": tuned.outcome.best.error,
            }
            candidates[sampler] = Candidate(target, stored_config(target).values())
        for name in LISTS:
            optimize(source, passes=name, output=place / f"{name}.onnx")
            candidates[name] = Candidate(place / f"{name}.onnx")
        label, inputs = inputs_to_measure(options, load(source))
        same = _alike(candidates)
        different = {name: candidates[name] for name in same if same[name] == name and name != "original"}
        with SessionMeter(candidates["original"], inputs, threads, "original") as meter:
            found = meter.measure(different, MOST, enough=_after(rounds, budget / 3))
        row_of = {row.name: row.to_dict() for row in found}
    return {
        "sizes": label,
        "budget": budget,
        "max_error": max_error,
        "threads": threads,
        "load": round(os.getloadavg()[0], 2),
        "seconds": round(time.monotonic() - started),
        "random begins with": "a random choice",
        "searches": trials,
        "sessions": {name: {**row_of[other], "name": name} for name, other in same.items()},
        "same": {name: other for name, other in same.items() if name != other},
    }


def _alike(candidates: Mapping[str, Candidate]) -> dict[str, str]:
    """For each candidate the first that is the same model in the same session."""
    first: dict[object, str] = {}
    same = {}
    for name, one in candidates.items():
        key = (
            hashlib.sha256(one.path.read_bytes()).digest(),
            tuple(sorted((k, str(v)) for k, v in one.settings.items())),
        )
        same[name] = first.setdefault(key, name)
    return same


def _after(rounds: int, seconds: float) -> Enough:
    """Ends a comparison after these rounds, or later, once it took these seconds."""
    end = time.monotonic() + seconds

    def enough(speedups: Mapping[str, Sequence[float]]) -> list[str]:
        done = min(map(len, speedups.values()), default=0)
        return list(speedups) if done >= rounds and time.monotonic() > end else []

    return enough


def verdict(row: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the tuner with the best fixed list, and with random search, which may have found the same choice."""
    speed = {name: entry["speedup"] for name, entry in row["sessions"].items()}
    best = max((name for name in speed if name not in ("tpe", "random")), key=speed.__getitem__)
    return {
        "tuner": speed["tpe"],
        "random": speed["random"],
        "best list": best,
        "its speedup": speed[best],
        "as fast as the best list": speed["tpe"] >= NOISE * speed[best],
        "beats random": speed["tpe"] > speed["random"],
        "found the same": row["same"].get("tpe", "tpe") == row["same"].get("random", "random"),
    }


def brief(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's row of the summary: the budget, the trials of each search, and the verdict."""
    kept = {key: row[key] for key in ("sizes", "budget", "threads", "seconds", "random begins with")}
    trials = {name: search["trials"] for name, search in row["searches"].items()}
    return {**kept, "trials": trials, "verdict": verdict(row)}


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models by path, or leading parts of their names.")] = None,
    models: Annotated[Path, typer.Option(help="Folder with the full-size models.")] = FULL_SIZE,
    goldens: Annotated[bool, typer.Option(help="Small models, of the golden tests, instead.")] = False,
    budget: Annotated[float, typer.Option(help="Seconds for each search.")] = 120.0,
    max_error: Annotated[float | None, typer.Option(help="Relative error that lower precision may make.")] = None,
    minutes: Annotated[float, typer.Option(help="The time for everything, instead of a budget.")] = 0.0,
    rounds: Annotated[int, typer.Option(help="How often each session runs at the end.")] = 15,
    threads: Annotated[int, typer.Option(help="Threads of the runtime.")] = 0,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
) -> None:
    """Measure, print, and store after each model."""
    console = Console()
    results = Results("tuner", output)
    stored = results.result()
    kind = ("goldens" if goldens else "models") + ("" if max_error is None else f" under {max_error:g}")
    rows: dict[str, Any] = stored.setdefault(kind, {})
    usual, folder = (GOLDENS, GOLDEN) if goldens else (DEFAULTS, models)
    chosen = [name for name in usual if any(name.startswith(part) for part in names)] if names else list(usual)
    open_ = [name for name in chosen if (folder / f"{name}.onnx").is_file() and (name not in rows or names)]
    end = time.monotonic() + 60 * minutes
    for number, name in enumerate(open_):
        if minutes:
            budget = max(SHORTEST, (end - time.monotonic()) / (len(open_) - number) / SHARES)
        sizes = {} if goldens else sizes_of(name)
        try:
            row = one_model(folder / f"{name}.onnx", sizes, budget, rounds, threads, max_error)
        except OrtfuseError as error:
            console.print(f"{name}: {error}", markup=False, highlight=False)
            continue
        rows[name] = brief(row)
        stored[f"{kind} total"] = total(rows)
        results.store(COMMAND, stored, raw={f"{kind}, {name}": row}, packages=(*PACKAGES, "optuna"))
        console.print(f"{name}: {row['seconds']} s", highlight=False)
    console.print(table(rows))
    sums = total(rows)
    console.print(", ".join(f"{name}: {count}" for name, count in sums.items()), highlight=False)


def total(rows: Mapping[str, Any]) -> dict[str, int]:
    """On how many models the tuner is as good as it has to be."""
    said = [row["verdict"] for row in rows.values()]
    alike = [one for one in said if one["found the same"]]
    return {
        "models": len(said),
        "as fast as the best list": sum(one["as fast as the best list"] for one in said),
        "faster than random search": sum(one["beats random"] and one not in alike for one in said),
        "found the same as it": len(alike),
    }


def table(rows: Mapping[str, Any]) -> Table:
    """Return a table of the models and of the speedup that each search found."""
    made = Table(title="Speedup over the original in a default session", title_justify="left")
    for heading in ("model", "tuner", "random", "best list", "its speedup", "trials", "budget"):
        made.add_column(heading)
    for name, row in rows.items():
        said = row["verdict"]
        made.add_row(
            name, f"{said['tuner']:.2f}", f"{said['random']:.2f}", said["best list"], f"{said['its speedup']:.2f}",
            ", ".join(map(str, row["trials"].values())), f"{row['budget']:.0f} s",
        )  # fmt: skip
    return made
