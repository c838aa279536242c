"""Write the figures that the README and the documents quote, from the summaries of `benchmarks/`.

    python docs/figures.py            # write them
    python docs/figures.py --check    # only say which are not those of the summaries; then the exit code is 1

A document has a comment before and after the lines that are made here, the first with the name of the function below.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.jobs import JOBS

ROOT = Path(__file__).parents[1]

WIDTH = 118
NAMES = {
    "bert": "BERT-base", "clip_text": "CLIP's text tower", "convnext": "ConvNeXt", "deberta": "DeBERTa",
    "densenet121": "DenseNet-121", "regnet": "RegNet", "super_resolution": "a super-resolution net",
    "efficientnet": "EfficientNet-B0", "gpt2": "GPT-2", "gpt2_step": "a step of GPT-2", "gru": "a GRU", "llama": "Llama",
    "llama_step": "a step of Llama", "lstm": "an LSTM", "lstm_cells": "50 unrolled LSTM cells", "minilm": "MiniLM with 16 tokens",
    "mobilenet2": "MobileNetV2", "resnet50": "ResNet-50", "segformer": "Segformer", "speech": "a speech net", "swin": "Swin-T", "t5_encoder": "T5's encoder",
    "t5_step": "a step of T5", "unet": "a UNet", "vit": "ViT-B", "wav2vec2": "Wav2Vec2", "whisper_encoder": "Whisper's encoder",
    "whisper_step": "a step of Whisper", "yolo": "a YOLO",
}  # fmt: skip
BOUNDS = ("0.05", "0.01", "0.001")
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def by_processor(name: str) -> dict[str, Any]:
    """Return the results of a question by kind of processor."""
    summary = json.loads((ROOT / "benchmarks" / "summaries" / f"{name}.json").read_text())
    return {run.get("processor", ""): run["result"] for run in summary["runs"]}


def stored(name: str) -> Any:
    """Return the result of a question that depends on no processor."""
    (result,) = by_processor(name).values()
    return result


def measured() -> str:
    """Return all figures: a section with a table for each large question, and a point for each of the others."""
    sections = (_coverage, _latency, _precision, _quantised_models, _outside)
    lines = [line for section in sections for line in (*section(), "")]
    points = (_trained, _engine, _passes, _weights, _tuning, _calibration, _trust)
    text = "\n".join([*lines, "### Other questions", "", *(_wrapped(f"- {point()}", "  ") for point in points)])
    return re.sub(r"\n{3,}", "\n\n", text)


def summary() -> str:
    """Return the figures for a newcomer."""
    every = by_processor("latency").values()
    measured = [_speedups(found["models"]) for found in every]
    means = [statistics.geometric_mean(one.values()) for one in measured]
    least, worst = min((speedup, name) for one in measured for name, speedup in one.items())
    most = max(speedup for one in measured for speedup in one.values())
    under = [
        row["tools"]["ortfuse 0.05"][0]
        for found in by_processor("precision").values()
        for row in found["models"].values()
        if "0.05" in row["best_peer"]
    ]
    text = (
        f"Measured with two threads and batch 1 against ONNX Runtime's default: {_span(means)} times as fast with the same results. It is "
        f"the geometric mean over {_several([len(one) for one in measured])} exports of full-size models on {len(measured)} kinds of "
        f"processor, from {least:.2f} ({_name(worst)}) to {most:.2f}. With an output error below 5e-2, `ortfuse quantize` makes models "
        f"{_span(under)} times as fast. More in [docs/promises.md](docs/promises.md); `python -m benchmarks` repeats every measurement."
    )
    return _wrapped(text, "")


def seeds() -> str:
    """Return how often bounds hold on inputs that no search has seen."""
    rows = stored("precision.seeds")["models"].values()
    searches, broken = (sum(row[key] for row in rows) for key in ("searches", "BROKEN"))
    worst = max(row["worst error / bound"] for row in rows)
    text = (
        f"`python -m benchmarks.precision.seeds` runs searches with many seeds and few schemes each, on small models with "
        f"random weights. In {searches - broken} of {searches} searches the bound held on all further sets of inputs."
        + (f" The others exceeded it, the worst by a factor of {worst:.2f}." if broken else "")
    )
    return _wrapped(text, "")


def rounding() -> str:
    """Return the error of rounded weights by the number of inputs."""
    found = stored("precision.rounding")
    counts = list(next(iter(next(iter(found["models"].values())).values())))
    lines = [
        f"| model | scheme | {' | '.join(f'{count} sets' for count in counts)} |",
        f"|{'---|' * (2 + len(counts))}",
    ]
    for model, schemes in found["models"].items():
        for scheme, errors in schemes.items():
            numbers = " | ".join(f"{errors[count]:.1e}" for count in counts)
            lines.append(f"| {model} | `{scheme}` | {numbers} |")
    return "\n".join(lines)


def questions() -> str:
    """Return a table of all questions."""
    lines = ["| question | command | summary |", "|---|---|---|"]
    for job in JOBS:
        arguments = " ".join(job.command[1:]).replace("--output {output}", "").replace("{folder}", "FOLDER")
        there = job.summary and (ROOT / "benchmarks" / job.stored).is_file()
        summary = f"[{job.name}]({job.stored})" if there else "none yet" if job.summary else ""
        lines.append(f"| {job.question} | `{f'python -m {job.module} {arguments}'.strip()}` | {summary} |")
    return "\n".join(lines)


def quantised() -> str:
    """Return the speedups of models that others have quantised."""
    return _wrapped(_quantised(), "")


def _coverage() -> Iterator[str]:
    groups = stored("coverage")["totals"].values()
    sites, found = Counter[str](), dict[str, Counter[str]]()
    for group in groups:
        sites.update(group["sites"])
        for tool, sums in group["tools"].items():
            found.setdefault(tool, Counter()).update(sums)
    del found["original"]
    counts = {"attention": "attention", "rotary": "rotary embeddings", "rms_norm": "RMS normalisation", "gelu": "GELU"}
    calls = stored("coverage.modules")
    total, there = (sum(family[key] for family in calls["families"].values()) for key in ("calls", "found"))
    yield "### Coverage\n"
    yield _wrapped(
        f"The table counts calls of PyTorch in {sum(group['files'] for group in groups)} small exports by both PyTorch exporters "
        "(`coverage.json`). A call counts if one fused operator computes it afterwards, even if the exporter wrote that operator. The "
        "last column counts the models that a tool breaks.",
        "",
    )
    heads = [f"{text}, of {sites[key]}" for key, text in counts.items()]
    rows = [
        (f"{_tool(tool)}", *(str(sums[key]) for key in counts), str(sums["broken"])) for tool, sums in found.items()
    ]
    yield from _table(["tool", *heads, "models broken"], rows)
    yield _wrapped(
        f"PyTorch's own modules made {total:,} calls in {calls['models']} golden models. {there:,} of them have their operator. "
        "`coverage.modules.json` has the reason for each of the others.",
        "",
    )


def _tool(name: str) -> str:
    return f"**{name}**" if name == "ortfuse" else "the runtime itself" if name == "runtime" else name


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table of Markdown; all but its first column are numbers."""
    yield ""
    yield f"| {' | '.join(headings)} |"
    yield f"|---|{'---:|' * (len(headings) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _speedups(rows: Mapping[str, Any]) -> dict[str, float]:
    found = {name: row["tools"]["ortfuse"] for name, row in rows.items()}
    return {name: entry[0] for name, entry in found.items() if not isinstance(entry, str)}


def _latency() -> Iterator[str]:
    every = by_processor("latency")
    exports = [
        f"- {len(_speedups(found['models']))} exports of {len(_by_network(found))} full-size models on {_formats(kind)}"
        for kind, found in every.items()
    ]
    yield "### Latency\n"
    yield _wrapped(
        "Speedups over the runtime's default (`latency.json`), with two threads, batch 1 and interleaved runs. Numbers in parentheses "
        "count the exports that a tool does not break; its geometric mean is over these. The best peer is picked per model. The "
        "exports are",
        "",
    )
    yield ""
    yield from exports
    tools = list(dict.fromkeys(tool for found in every.values() for tool in found["means"]))
    rows = [(_tool(tool), *(_mean(found, tool) for found in every.values())) for tool in tools]
    yield from _table(["geometric mean", *(f"on {_formats(kind)}" for kind in every)], rows)
    yield "Speedups of each network, from the least to the greatest over its exports:"
    yield from _networks()


def _mean(found: Mapping[str, Any], tool: str) -> str:
    """A tool's geometric mean, with how many exports it is of."""
    if tool == "ortfuse":
        speedups = _speedups(found["models"])
        return f"**{statistics.geometric_mean(speedups.values()):.2f}** ({len(speedups)})"
    mean = found["means"].get(tool)
    return f"{mean['geometric_mean']:.2f} ({mean['models']})" if mean else ""


def _by_network(found: Mapping[str, Any]) -> dict[str, list[float]]:
    """The speedups of the exports of each network."""
    by_name: dict[str, list[float]] = {}
    for name, speedup in _speedups(found["models"]).items():
        by_name.setdefault(_name(name), []).append(speedup)
    return by_name


def _sorted_by(name: str) -> tuple[str, int]:
    """A step of a network stands behind the network."""
    return re.sub("^an? (step of )?", "", name).casefold(), len(name)


def _networks() -> Iterator[str]:
    """Each network's latency over the runtime's default as a table."""
    every = {kind: _by_network(found) for kind, found in by_processor("latency").items()}
    names = sorted({name for found in every.values() for name in found}, key=_sorted_by)
    rows = [(name, *(_span(found[name]) if name in found else "" for found in every.values())) for name in names]
    yield from _table(["speedup", *(f"on {_formats(kind)}" for kind in every)], rows)


def _precision() -> Iterator[str]:
    yield "### Precision\n"
    yield _wrapped(
        "Speedups over the runtime's default under a bound on the error of the outputs (`precision.json`). The error is measured on "
        "inputs that no tool has seen. Parentheses hold the best of the runtime's own quantisers that keeps the bound. A cell is empty "
        "if the search did not end within its time limit.",
        "",
    )
    for kind, found in by_processor("precision").items():
        cells = [(_name(name), *(_under(bound, row) for bound in BOUNDS)) for name, row in found["models"].items()]
        yield from _table([f"on {_formats(kind)}", *(f"under {bound}" for bound in BOUNDS)], cells)


def _quantised() -> str:
    every = by_processor("precision.quantised")
    each = " ".join(f"**On {_formats(kind)}**: {_of_others(found['models'])}" for kind, found in every.items())
    return (
        "**Models that others have quantised** (`precision.quantised.json`): the speedup by `ortfuse optimize` of models from the "
        "runtime's `quantize_static` with its defaults (signed activations). In parentheses are the integer operators that are "
        f"executed, before and after. {each}."
    )


def _quantised_models() -> Iterator[str]:
    yield "### Models that other tools have quantized\n"
    yield _wrapped(
        "Models made by the runtime's `quantize_static` with its defaults (signed activations), before and after `ortfuse optimize` "
        "(`precision.quantised.json`).",
        "",
    )
    for kind, found in by_processor("precision.quantised").items():
        rows = {name: row["signed"] for name, row in found["models"].items() if "speedup" in row["signed"]}
        cells = [
            (_name(name), f"{row['speedup']['ortfuse']:.2f}", *map(str, row["integers"])) for name, row in rows.items()
        ]
        yield from _table([f"on {_formats(kind)}", "speedup", "integer operators executed, before", "after"], cells)
        slower = sum(row["speedup"]["float32"] > 1 for row in rows.values())
        yield f"{slower} of the {len(rows)} were slower than their float32 model before."


def _of_others(models: Mapping[str, Any]) -> str:
    rows = {name: row["signed"] for name, row in models.items() if "speedup" in row["signed"]}
    parts = [
        f"{_name(name)} {row['speedup']['ortfuse']:.2f} ({row['integers'][0]} and {row['integers'][1]})"
        for name, row in rows.items()
    ]
    slower = sum(row["speedup"]["float32"] > 1 for row in rows.values())
    return f"{', '.join(parts)}. Before, {slower} of the {len(rows)} were slower than in float32"


def _outside() -> Iterator[str]:
    yield "### Another runtime\n"
    yield _wrapped(
        "OpenVINO and NNCF execute the exported files themselves, in turns with the runtime's default (`other_runtime.json`). The table "
        "has geometric means of the speedups over that default, and the errors of the outputs. Rows with a bound are the results of "
        "*Precision*.",
        "",
    )
    for kind, found in by_processor("other_runtime").items():
        summary = dict(found["summary"])
        ahead = [
            f"{_name(name)} ({found['models'][name]['tools']['OpenVINO f32'][0]:.2f} against "
            f"{found['models'][name]['tools']['ortfuse'][0]:.2f})"
            for name in summary.pop("ahead of ortfuse in float32")
        ]
        rows = [
            (
                re.sub(r"^ortfuse (\S+)$", r"ortfuse, error under \1", tool),
                f"{mean['geometric_mean']:.2f}",
                f"{mean['errors'][0]:.0e} to {mean['errors'][1]:.0e}",
            )
            for tool, mean in summary.items()
        ]
        yield from _table([f"on {_formats(kind)}", "speedup", "errors"], rows)
        yield f"In float32 OpenVINO is faster on {', '.join(ahead) or 'none'}."


def _formats(kind: str) -> str:
    """Return the integer instructions of a kind of processor, from its full name."""
    if "AMX_INT8" in kind:
        return "a processor with AMX"
    return "a processor with VNNI, without AMX" if "VNNI" in kind else "a processor without VNNI"


def _under(bound: str, row: Mapping[str, Any]) -> str:
    """Return the speedup under a bound, with that of the best peer."""
    tools, best = row["tools"], row["best_peer"].get(bound)
    if best is None:
        return ""
    return f"{tools[f'ortfuse {bound}'][0]:.2f} ({f'{tools[best][0]:.2f}' if best else 'none'})"


def _trained() -> str:
    rows = stored("precision.trained")["models"]
    every = [(name, bound, one) for name, row in rows.items() for bound, one in row["bounds"].items()]
    kept = [(name, bound, one) for name, bound, one in every if not isinstance(one, str)]
    faster = [f"{name} {one['speedup']:.2f} under {bound}" for name, bound, one in kept if one["lowered"]]
    refused = len(every) - len(kept)
    return (
        f"**Trained models** (`precision.trained.json`; inputs made by a program): {', '.join(rows)}. After `quantize` under 1e-3, 1e-2 "
        f"and 5e-2 they decide the same as before in at least {min(one['agreement'] for _, _, one in kept):.2%} of all cases. Lower "
        f"precision is used if it saves time: {', '.join(faster) or 'never'}. {refused} of the {len(every)} bounds cannot be "
        "kept, and the error message says so."
    )


def _engine() -> str:
    engine, lists = stored("engine"), stored("engine.lists")
    ratios = {
        tool: [row[f"{tool} / ortfuse"] for row in engine["graph_time_seconds"]] for tool in ("onnxscript", "onnxslim")
    }
    first, last = engine["scaling"][0], engine["scaling"][-1]
    calls = [entry["calls"] for entry in lists["share_of_all"].values()]
    return (
        f"**Engine** (`engine.json`): on BERT-base, GPT-2 and Swin-T the graph time is {_span(ratios['onnxscript'], 1)} times shorter "
        f"than that of onnxscript's `optimize_for_ort`, and {_span(ratios['onnxslim'], 1)} times shorter than onnxslim's. A graph of "
        f"{last['nodes']:,} nodes takes {last['ratio_to_smallest']:.2f} times as long per node as one of {first['nodes']:,}. The pass "
        f"lists of families do the work of `all` with {_span(calls)} of its function calls (`engine.lists.json`)."
    )


def _passes() -> str:
    small, full, rules = stored("passes"), stored("passes.full"), stored("rules")
    counts = rules["counts"]
    return (
        f"**Passes and rules** (`passes.json`, `passes.full.json`, `rules.json`, [page](left-out.md)): each pass of each family's list "
        f"was left out alone, on {full['models']} exports of full size and {small['models']} small models. Each rule was left out of "
        f"models in which it fires, of {sum(rules['models'].values())} that were tried: {counts['saves']} rules save executed operators "
        f"or estimated time, {counts['measured']} are faster as measured, {counts['needed']} are needed by others, "
        f"{counts['idle'] + counts['costs']} save nothing there, {counts['never']} fire in none."
    )


def _weights() -> str:
    found = stored("weights")
    (single,) = [row for row in found["single_file"] if row["model"] == "bert.sdpa.ts.onnx"]
    tools = single["tools"]
    peers = ", ".join(f"{name} {tools[name]['RssAnon']:,.0f} MB" for name in tools if name != "ortfuse")
    largest = max(row["gigabytes"] for row in found["decoders"])
    (decoder,) = [row for row in found["decoders"] if (row["gigabytes"], row["form"]) == (largest, "copied")]
    return (
        f"**Weights** (`weights.json`): reading, optimising and writing BERT-base ({single['bytes'] / 1e6:.0f} MB) takes "
        f"{tools['ortfuse']['engine_seconds']:.1f} s in the engine and {single['times_of_a_copy_beside_the_engine']:.1f} times the "
        f"time of a copy with fsync. It takes {tools['ortfuse']['RssAnon']:.0f} MB of anonymous memory ({peers}). A decoder of "
        f"{largest:.0f} GB takes {decoder['RssAnon']:.0f} MB."
    )


def _tuning() -> str:
    found = stored("tuner")
    sums, full = found["goldens total"], found["models total"]
    budgets, longer = ([row["budget"] for row in found[which].values()] for which in ("goldens", "models"))
    return (
        f"**Tuning** (`tuner.json`): on {sums['models']} small models with {min(budgets):.0f} to {max(budgets):.0f} s each, the result "
        f"of `ortfuse tune` is faster than that of a random search on {sums['faster than random search']}. It is as fast as the best "
        f"fixed pass list on {sums['as fast as the best list']}. On {full['models']} models of full size with {max(longer):.0f} s each "
        f"it is so on {full['faster than random search']} and {full['as fast as the best list']}."
    )


def _calibration() -> str:
    parts = (
        f"{found['total']['same'] / found['total']['sites']:.1%} of {found['total']['sites']} sites on {_formats(kind)}"
        for kind, found in by_processor("calibration").items()
    )
    return (
        "**Rule costs** (`calibration.json`): the table of `ortfuse calibrate` mostly makes the same choice as a measurement of the "
        f"site itself. It does at {', '.join(parts)}."
    )


def _trust() -> str:
    tests = stored("trust.standard")
    same = sum(counts.get("same", 0) for kind, counts in tests["tests"].items() if kind != "light")
    fuzz = stored("trust.fuzz")
    return (
        f"**Trust** (`benchmarks/trust/trust.md`): every rule is tested on instances and near misses. The "
        f"runtime executes {same:,} tests of the ONNX standard and {tests['tests']['light']['same']} networks with the same results, and "
        f"{len(tests['broken'])} with others. {fuzz['models']['tried']:,} random models and {fuzz['mutations']['tried']:,} damaged files "
        "were tried."
    )


def _name(model: str) -> str:
    return NAMES.get(model.partition(".")[0], model)


def _span(numbers: Sequence[float], digits: int = 2) -> str:
    low, high = (f"{end(numbers):.{digits}f}" for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _several(counts: Sequence[int]) -> str:
    *first, last = map(str, sorted(counts))
    return f"{', '.join(first)} and {last}" if first else last


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


MADE: Mapping[str, Callable[[], str]] = {
    "measured": measured,
    "summary": summary,
    "seeds": seeds,
    "rounding": rounding,
    "quantised": quantised,
    "questions": questions,
}


def documents() -> Iterator[Path]:
    """The documents that may quote figures."""
    yield ROOT / "README.md"
    yield ROOT / "benchmarks" / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def renewed(text: str) -> str:
    """A document with its figures as they are stored."""
    return BLOCK.sub(lambda found: f"{found[1]}{MADE[found[2]]()}\n{found[3]}", text)


def main(arguments: Sequence[str]) -> int:
    """Write, or compare."""
    old = [path for path in documents() if renewed(path.read_text()) != path.read_text()]
    for path in old:
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)}: figures are not those of benchmarks/; run python docs/figures.py")
        else:
            path.write_text(renewed(path.read_text()))
    return 1 if old and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
