"""Other tools on results: every tool on every golden model, and on the result of ortfuse for it.

    python -m benchmarks.trust.downstream                          # all; writes the summary and its table
    python -m benchmarks.trust.downstream --tool quantize_dynamic  # this again; the other tools' figures stay
    python -m benchmarks.trust.downstream NAME... --show           # these models, without storing figures

A tool works on a model if it raises nothing, the runtime loads and runs the file that it writes, and that file is near enough to
the original: on a result of ortfuse at most `FACTOR` times as far as the same tool's file of the original. A tool that stores
weights in fewer bits must find at least as many of them, and may be further off if it finds more.
Tools that are not installed are left out (`pip install '.[peers]'` has them all).
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import pickle
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer

from benchmarks.isolated import call, preload
from benchmarks.models import GOLDEN
from benchmarks.results import Results
from benchmarks.trust.downstream_tools import TOOLS
from ortfuse import optimize
from ortfuse.io.load_and_save import load
from ortfuse.verification import experiments

COMMAND = "python -m benchmarks.trust.downstream"
PRELOADED = (
    "__main__",
    "onnx",
    "onnxruntime",
    "ortfuse.pipeline",
    "ortfuse.verification",
    "benchmarks.trust.downstream_tools",
)
OF_TOOLS = ("onnxruntime.quantization", "onnxruntime.transformers.float16", "onnxscript.optimizer",
            "onnxruntime.tools.symbolic_shape_infer", "onnxslim", "onnxsim", "onnx_graphsurgeon", "openvino")  # fmt: skip
FACTOR = 2.0
FLOOR = 1e-4
"""The error, relative to the largest number of an output, that every tool may add."""

SAME_WEIGHTS = 0.9
"""The share of the weights that must be found, since folding and merging of constants changes their number a little."""

BAD = ("fails", "off", "misses weights")
NARROW = {onnx.TensorProto.DataType.Value(kind) for kind in ("INT8", "UINT8", "INT4", "UINT4", "FLOAT16")}
LIMIT = 300.0
FORMS = {"result": "auto", "quantization": "quantization"}
"""The results of ortfuse: by default, and by the pass list for what is to be quantised."""


def installed() -> list[str]:
    """The tools that can be tried here."""
    return [name for name, tool in TOOLS.items() if importlib.util.find_spec(tool.package) is not None]


def tried(tool: str, source: Path, trials: Path) -> dict[str, Any]:
    """Apply a tool to a model and run what it makes.

    Returns:
        `error`, the largest of an output relative to its largest number; of integers and truth values, the share that differs.
        For tools that narrow weights, `narrow` is the number of weights that are stored so.

    Raises:
        Exception: Whatever the tool or the runtime says.
    """
    found = pickle.loads(trials.read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # some tools leave files behind
        target = Path(folder) / "after.onnx"
        target = TOOLS[tool].apply(source, target, [one.inputs for one in found]) or target
        run = _openvino(target) if tool == "OpenVINO" else _runtime(target)
        error = max(distance(one.expected, run(one.inputs)) for one in found)
        if not math.isfinite(error):
            raise ValueError("other shapes, or numbers that are not finite in other places")
        return {"error": float(f"{error:.2e}")} | ({"narrow": narrow(target)} if TOOLS[tool].narrows else {})


def narrow(path: Path) -> int:
    """The number of weights of products, convolutions, tables and LSTMs in at most 16 bits."""
    graph = onnx.load(path).graph
    sizes = {weight.name: math.prod(weight.dims) for weight in graph.initializer if weight.data_type in NARROW}
    found = 0
    for node in graph.node:
        if node.op_type in ("DequantizeLinear", "Cast", "Transpose"):
            sizes[node.output[0]] = sizes.get(node.input[0], 0)
        elif any(kind in node.op_type for kind in ("MatMul", "Gemm", "Conv", "Gather", "LSTM")):
            found += sum(sizes.pop(name, 0) for name in node.input)
    return found


def _run_original(source: Path, target: Path) -> None:
    """Keep the inputs and outputs of the original."""
    found, _ = experiments(load(source), reference=False)
    target.write_bytes(pickle.dumps(found))


def _runtime(path: Path) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    inputs = [value.name for value in session.get_inputs()]
    return lambda given: dict(zip(names, session.run(names, _as_named(inputs, given)), strict=True))


def _openvino(path: Path) -> Any:
    import openvino

    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    compiled = core.compile_model(core.read_model(path), "CPU")
    names = [output.get_any_name() for output in compiled.outputs]

    def run(given: Mapping[str, Any]) -> dict[str, Any]:
        found = compiled({name: np.asarray(array) for name, array in given.items()})
        return {name: found[output] for name, output in zip(names, compiled.outputs, strict=True)}

    return run


def _as_named(names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that a model takes; merging has given them a prefix."""
    return {name: given[name.removeprefix("merged/")] for name in names}


def distance(expected: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    """The largest error of the outputs that were found; infinite if shapes, or places of numbers that are not finite, differ."""
    by_name = {name.removeprefix("merged/").removeprefix("tail/"): array for name, array in found.items()}
    return max(_apart(expected[name], array) for name, array in by_name.items() if name in expected)


def _apart(expected: Any, found: Any) -> float:
    expected, found = np.asarray(expected), np.asarray(found)
    if expected.shape != found.shape:
        return math.inf
    if expected.dtype.kind != "f":
        return float(np.mean(expected != found)) if expected.size else 0.0
    one, other = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)):
        return math.inf
    scale = float(np.abs(one[finite]).max(initial=0.0)) or 1.0
    return float(np.abs(one[finite] - other[finite]).max(initial=0.0)) / scale


def status(original: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """`works`, `fails`, `off` or `misses weights` on the result; `not on the original` if the tool does not work there."""
    if "error" not in original:
        return "not on the original"
    if "error" not in result:
        return "fails"
    if result.get("narrow", 0) < SAME_WEIGHTS * original.get("narrow", 0):
        return "misses weights"
    finds_more = SAME_WEIGHTS * result.get("narrow", 0) > original.get("narrow", 0)
    return "works" if finds_more or result["error"] <= FACTOR * original["error"] + FLOOR else "off"


def measured(name: str, tools: Sequence[str]) -> dict[str, Any]:
    """A golden model's entry: for each tool what it says to the original and to each result, and what follows."""
    with tempfile.TemporaryDirectory() as folder:
        source, trials = GOLDEN / f"{name}.onnx", Path(folder) / "trials.pickle"
        results = {form: Path(folder) / f"{form}.onnx" for form in FORMS}
        _made(_run_original, source, trials)
        for form, path in results.items():
            _made(_optimise, source, path, FORMS[form])
        original = _answers(tools, source, trials)
        found = {form: _answers(tools, path, trials) for form, path in results.items()}
    return {
        tool: {"original": original[tool]}
        | {form: {"status": status(original[tool], found[form][tool]), **found[form][tool]} for form in FORMS}
        for tool in tools
    }


def _made(function: Any, *arguments: Any) -> None:
    made = call(function, *arguments, limit=LIMIT)
    if made.error:
        raise RuntimeError(f"{arguments[0]}: {made.error}")


def _optimise(source: Path, target: Path, passes: str) -> None:
    optimize(source, passes=passes, output=target)


def _answers(tools: Sequence[str], path: Path, trials: Path) -> dict[str, Any]:
    """Return the answer of each tool: all in one process and, if that ends without an answer, each in its own."""
    outcome = call(answers, tools, path, trials, limit=LIMIT)
    if outcome.error is None:
        return dict(outcome.value)
    if len(tools) == 1:
        return {tools[0]: {"says": outcome.error}}
    return {tool: _answers([tool], path, trials)[tool] for tool in tools}


def answers(tools: Sequence[str], source: Path, trials: Path) -> dict[str, Any]:
    """The `error` that each tool makes, or what it `says` if it does not work."""
    return {tool: _answer(tool, source, trials) for tool in tools}


def _answer(tool: str, source: Path, trials: Path) -> dict[str, Any]:
    try:
        return tried(tool, source, trials)
    except Exception as refusal:
        said = " ".join(f"{type(refusal).__name__}: {refusal}".split())
        return {"says": re.sub(rf"{re.escape(tempfile.gettempdir())}/\w+/", "", said)[:400]}


def totals(models: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Count the models on which each tool works: on the original, and of these on each result, and on either."""
    found = {}
    for tool in TOOLS:
        entries = [entry[tool] for entry in models.values() if tool in entry and "error" in entry[tool]["original"]]
        works = [{form for form in FORMS if entry[form]["status"] == "works"} for entry in entries]
        if entries:
            found[tool] = {"original": len(entries)} | {form: sum(form in one for one in works) for form in FORMS}
            found[tool]["either"] = sum(map(bool, works))
    return found


def table(models: Mapping[str, Any], before: Mapping[str, int]) -> str:
    """Return the figures as Markdown; `before` has the numbers of results on which the tools worked at first."""
    lines = [
        "| tool | works on the original | on the result | with `--for quantization` | before | not on the result of |",
        "|---|---|---|---|---|---|",
    ]
    for tool, counts in totals(models).items():
        bad = [name for name, entry in models.items() if entry.get(tool, {}).get("result", {}).get("status") in BAD]
        shown = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
        numbers = " | ".join(str(counts[side]) for side in ("original", *FORMS))
        lines.append(f"| {tool} | {numbers} | {before.get(tool, '')} | {shown} |")
    return "\n".join(lines) + "\n"


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Golden models; all by default.")] = None,
    tool: Annotated[list[str] | None, typer.Option(help="Only these tools, measured again.")] = None,
    show: Annotated[bool, typer.Option(help="Print the failures, and store nothing.")] = False,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
) -> None:
    """Try the tools on the models and write figures and table; the exit code is 1 if no result is usable."""
    preload([*PRELOADED, *(() if tool else OF_TOOLS)])  # by name, so that a tool that is not installed does no harm
    wanted = [name for name in installed() if not tool or name in tool]
    results = Results("trust.downstream", output)
    models = {} if show else results.raw_rows()
    every = sorted(path.stem for path in GOLDEN.glob("*.onnx"))
    for name in names or every:
        missing = wanted if tool else [one for one in wanted if one not in models.get(name, {})]
        if not missing:
            continue
        models[name] = {**models.get(name, {}), **measured(name, missing)}
        for one, form in itertools.product(missing, FORMS):
            if models[name][one][form]["status"] in BAD:
                print(f"{name}: {one}: {form}: {models[name][one]['original']} {models[name][one][form]}", flush=True)
        if not show:
            results.add({name: models[name]})
    before = results.result().get("before", {})
    text = table(models, before)
    print(text)
    if not show and all(models.get(name, {}).keys() >= {*installed()} for name in every):
        packages = sorted({TOOLS[tool].package.replace("_", "-") for tool in installed()})
        results.store(COMMAND, {"models": len(models), "totals": totals(models), "before": before}, packages=packages)
        place = results.summary.with_name(f"{results.name}.md")
        place.write_text(_HEAD.format(models=len(models)) + text)
    raise typer.Exit(1 if any(counts["either"] < counts["original"] for counts in totals(models).values()) else 0)


_HEAD = """# Other tools, on originals and on results

Made by `python -m benchmarks.trust.downstream`: the number of {models} golden models on which each tool works, and the number of
these on whose result it works too, by default and with `--for quantization`. "Before" is the default at the first measurement.

A result counts if the tool's model of it is as near to the original as its model of the original, with as many narrow weights.

"""


if __name__ == "__main__":
    typer.run(main)
