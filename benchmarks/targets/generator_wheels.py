"""Generators for older releases, run on the wheels of these releases: do they write what the decoders write?

    python -m benchmarks.targets.generator_wheels                        # golden decoders with caches on five releases
    python -m benchmarks.targets.generator_wheels 1.20.1 --model llama   # one release, models whose names contain a word

The decoder runs in a plain loop on the installed runtime. A process with the release first on its path then runs the generator
on the same tokens, prompts of several lengths apart and as one batch, and compares the scores. Each decoder is made a generator
of all scores, and one of those after the last token.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import ortfuse
from benchmarks.results import Results
from benchmarks.targets.releases import environment
from ortfuse.errors import GenerationError
from ortfuse.generation.compare_generations import TOLERANCE
from ortfuse.generation.interface_names import InterfaceNames
from ortfuse.generation.plain_loop import PlainLoop, input_types
from ortfuse.io.load_and_save import load
from ortfuse.runtime.session import Session

ROOT = Path(__file__).parents[2]
RELEASES = ("1.17.3", "1.18.1", "1.20.1", "1.22.1", "1.24.4")
DECODERS = ("_cache", "t5_decoder", "whisper_decoder")
PROMPTS = ([5, 9, 3, 17, 30, 8, 2, 41, 7, 12, 29], [7], [11, 4, 33])
MAX_LENGTH, STEPS = 64, 24

_COMPARE = "import sys; from benchmarks.targets.generator_wheels import compare; compare(*sys.argv[1:3])"


def record(path: Path, names: InterfaceNames, one_at_a_time: bool, file: Path) -> None:
    """Write what a decoder gives in a plain loop: scores [prompts, steps, vocabulary], and arrays of inputs that stay."""
    model = load(path)
    types, random, session = input_types(model), np.random.default_rng(5), Session(model)
    fixed = {name: _drawn(types[name].dtype, types[name].shape, random) for name in names.fixed}
    scores = []
    for prompt in PROMPTS:
        loop = PlainLoop(session, names, types)
        for piece in [[token] for token in prompt] if one_at_a_time else [prompt]:
            found = loop.step(np.array([piece]), fixed)[:, -1]
        rows = [found[0]]
        for _ in range(STEPS):
            rows.append(loop.step(np.array([[int(rows[-1].argmax())]]), fixed)[0, -1])
        scores.append(rows)
    np.savez(file, scores=np.array(scores), **fixed)


def _drawn(kind: np.dtype[Any], shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray[Any, Any]:
    sizes = [size if size > 0 else (1 if axis == 0 else 9) for axis, size in enumerate(shape)]
    return random.standard_normal(sizes).astype(kind) if kind.kind == "f" else np.ones(sizes, kind)


def compare(folder: str, found: str) -> None:
    """Run the generators in a folder on the runtime of this process, and write the error of each to a file."""
    import onnxruntime

    errors: dict[str, Any] = {"runtime": onnxruntime.__version__}
    for place in sorted(one for one in Path(folder).iterdir() if one.is_dir()):
        recorded = dict(np.load(place / "recorded.npz"))
        wanted = recorded.pop("scores")
        try:
            generator = ortfuse.Generator(place)
            apart = [_scores(generator, [prompt], wanted[[at]], recorded) for at, prompt in enumerate(PROMPTS)]
            errors[place.name] = max(apart)
            if generator.interface.mixed_lengths and not recorded:
                errors[place.name] = max(*apart, _scores(generator, list(PROMPTS), wanted, {}))
        except ortfuse.OrtfuseError as error:
            errors[place.name] = str(error)
    Path(found).write_text(json.dumps(errors))


def _scores(generator: ortfuse.Generator, prompts: list[list[int]], wanted: Any, fixed: dict[str, Any]) -> float:
    """The largest difference of scores over their spread at a step; infinite if a best token is another one."""
    got, largest = generator.prompt(prompts, fixed=fixed), 0.0
    for step in range(wanted.shape[1]):
        rows = wanted[:, step]
        if (got.argmax(-1) != rows.argmax(-1)).any():
            return float("inf")
        largest = max(largest, float((np.abs(got - rows).max(-1) / rows.std(-1)).max()))
        if step + 1 < wanted.shape[1]:
            got = generator.step(rows.argmax(-1)[:, None], fixed=fixed)[:, -1]
    return largest


def tried(release: str, paths: list[Path], environments: Path) -> dict[str, Any]:
    """Make generators for a release and compare them on its wheel; returns the figures."""
    refused: dict[str, list[str]] = {}
    variants = [(path, last_logits) for path in paths for last_logits in (False, True)]
    with tempfile.TemporaryDirectory() as scratch:
        for path, last_logits in variants:
            name = path.stem + (".last_logits" if last_logits else "")
            place = Path(scratch) / "made" / name
            try:
                done = ortfuse.generator(path, place, max_length=MAX_LENGTH, last_logits=last_logits, runtime=release)
            except GenerationError as error:
                text = str(error)
                refused.setdefault(text[max(text.find("onnxruntime"), 0) :], []).append(name)
                continue
            record(path, done.decoder, done.interface.longest_run == 1, place / "recorded.npz")
        made, found = Path(scratch) / "made", Path(scratch) / "errors.json"
        made.mkdir(exist_ok=True)
        places = os.pathsep.join([str(environment(release, environments)), str(ROOT)])
        command = [sys.executable, "-c", _COMPARE, str(made), str(found)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": places})
        errors = json.loads(found.read_text())
        ran = errors.pop("runtime")
        assert ran == release, f"{ran} ran"
    wrong = {name: one for name, one in errors.items() if isinstance(one, str) or not one <= TOLERANCE}
    equal = [one for name, one in errors.items() if name not in wrong]
    return {
        "models": len(variants),
        "equal": len(equal),
        "largest error": float(f"{max(equal, default=0):.2g}"),
        "refused": refused,
        "others": wrong,
    }


def main(
    releases: Annotated[list[str] | None, typer.Argument(help="Versions of ONNX Runtime.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Words, one of which a model's name contains.")] = None,
    environments: Annotated[Path, typer.Option(help="Where environments are made and kept.")] = ROOT / ".environments",
    write: Annotated[bool, typer.Option(help="Whether to store the figures.")] = False,
) -> None:
    """Print the figures of each release; the exit code is 1 if a generator does not load there or writes something else."""
    files = sorted((ROOT / "golden" / "models").glob("*.onnx"))
    paths = [path for path in files if any(word in path.name for word in model or DECODERS)]
    found = {release: tried(release, paths, environments.resolve()) for release in releases or RELEASES}
    for release, row in found.items():
        print(f"{release}: {row['equal']} of {row['models']} generators equal, error {row['largest error']}")
        for why, names in row["refused"].items():
            print(f"  {len(names)} refused: {why}")
        for name, why in row["others"].items():
            print(f"  {name}: {why}")
    if write:
        Results("targets.generator_wheels").store("python -m benchmarks.targets.generator_wheels --write", found)
    raise typer.Exit(1 if any(row["others"] for row in found.values()) else 0)


if __name__ == "__main__":
    typer.run(main)
