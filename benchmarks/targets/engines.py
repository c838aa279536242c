"""Results for the target portable in engines that read plain ONNX: do they take them, and compute the same?

    python -m benchmarks.targets.engines                            # the golden models
    python -m benchmarks.targets.engines FOLDER --model bert        # also those of a folder; whose names contain a word
    python -m benchmarks.targets.engines --write                    # writes the summary

The engines are tract, an inference engine in Rust, and onnx2torch, which makes modules of PyTorch. They are installed in an
environment of their own. A model and its result run there on the same inputs, and are compared with the model in ONNX Runtime.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import venv
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer

from benchmarks import isolated
from benchmarks.results import Results
from benchmarks.targets.portable import GOLDEN, opset_of
from benchmarks.targets.run_in_engine import ENGINES

COMMAND = "python -m benchmarks.targets.engines --write"
LIMIT = 120.0
"""The seconds for optimising a model, and for running it in one engine."""

_PACKAGES = ("onnx", "tract", "onnx2torch")
_PROGRAM = Path(__file__).with_name("run_in_engine.py")
ORIGINAL, RESULT = "original", "result"


def environment(folder: Path) -> Path:
    """Install the engines in an environment of their own, unless it is there; returns its Python."""
    python = folder / "engines" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "engines", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *_PACKAGES], check=True)
    return python


def prepare(source: Path, folder: Path) -> None:
    """Write the result for portable at the opset of a model, inputs, and the outputs of the model."""
    import ortfuse
    from ortfuse.io.load_and_save import load
    from ortfuse.runtime.bench import typical_inputs
    from ortfuse.runtime.session import Session

    opset = opset_of(onnx.load(source, load_external_data=False))
    ortfuse.optimize(source, target="portable", max_opset=opset, output=folder / f"{RESULT}.onnx")
    model = load(source)
    _, inputs = typical_inputs(model)
    np.savez(folder / "inputs.npz", **inputs)
    made = Session(model, optimise=False).run(inputs)
    np.savez(folder / "expected.npz", **{value.name or "": made[value.name or ""] for value in model.graph.outputs})


def row(source: Path, python: Path) -> dict[str, Any]:
    """Return by engine what became of a model and of its result, or an `error`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        outcome = isolated.call(prepare, source, folder, limit=LIMIT)
        if outcome.error:
            return {"error": outcome.error}
        paths = {ORIGINAL: source.resolve(), RESULT: folder / f"{RESULT}.onnx"}
        return {
            engine: {which: _run(python, engine, path, folder) for which, path in paths.items()} for engine in ENGINES
        }


def _run(python: Path, engine: str, path: Path, folder: Path) -> dict[str, str]:
    command = [str(python), str(_PROGRAM), engine, str(path), str(folder / "inputs.npz"), str(folder / "expected.npz")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"word": "fails", "said": f"not done after {LIMIT:.0f} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"word": "fails", "said": f"ended with exit code {done.returncode}"}
    found: dict[str, str] = json.loads(lines[-1])
    return found


def figures(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return by engine how many models and results are right there, and those of which only the model is."""
    measured = {name: one for name, one in rows.items() if "error" not in one}
    found: dict[str, Any] = {
        "models": len(rows),
        "errors": {name: one["error"] for name, one in rows.items() if "error" in one},
    }
    for engine in ENGINES:
        pairs = {name: (one[engine][ORIGINAL], one[engine][RESULT]) for name, one in measured.items()}
        words = Counter((before["word"], after["word"]) for before, after in pairs.values())
        found[engine] = {
            "models equal": sum(count for (before, _), count in words.items() if before == "equal"),
            "results equal": sum(count for (_, after), count in words.items() if after == "equal"),
            "results that differ": sum(count for (_, after), count in words.items() if after == "differs"),
            "only the model is right": {
                name: f"{after['word']}: {after['said']}"
                for name, (before, after) in sorted(pairs.items())
                if before["word"] == "equal" != after["word"]
            },
        }
    return found


def main(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders with models besides the golden ones.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Words, one of which a model's name contains.")] = None,
    environments: Annotated[Path, typer.Option(help="Where the environment is kept.")] = Path(".environments"),
    write: Annotated[bool, typer.Option("--write", help="Store the figures.")] = False,
) -> None:
    """Print the figures; models that were tried by a run before, which was stopped, are not tried again."""
    python = environment(environments.resolve())
    isolated.preload(["__main__", "ortfuse", "onnxruntime"])
    results = Results("targets.engines")
    paths = {path.stem: path for folder in (GOLDEN, *(folders or ())) for path in sorted(folder.glob("*.onnx"))}
    asked = [name for name in paths if not model or any(word in name for word in model)]
    for name in asked:
        if name not in results.raw_rows():
            found = row(paths[name], python)
            results.add({name: found})
            words = {
                engine: "/".join(one["word"] for one in found[engine].values()) for engine in found if engine != "error"
            }
            print(name, found.get("error") or words, flush=True)
    known = results.raw_rows()
    found = figures({name: known[name] for name in asked})
    print(json.dumps(found, indent=1))
    if write:
        results.store(COMMAND, found)
    raise typer.Exit(1 if any(found[engine]["only the model is right"] for engine in ENGINES) else 0)


if __name__ == "__main__":
    typer.run(main)
