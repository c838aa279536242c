"""Generators beside the models of onnxruntime-genai's own builder: ``python -m benchmarks.generation.against_genai --write``.

The builder makes its models from a checkpoint, with the architecture known by name; a generator is made from the export. Both
have the weights of the same module. The export runs in a plain loop, the generator in `ortfuse.Generator` and in
onnxruntime-genai, and the builder's model in onnxruntime-genai, in interleaved rounds, with as many threads: onnxruntime-genai
takes one by default. Needs PyTorch, transformers and onnxruntime-genai.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.isolated import call
from benchmarks.results import Results
from ortfuse.api.fused_decoder import fused_decoder
from ortfuse.api.generator import MAX_LENGTH, generator
from ortfuse.generation.candidates import Candidate, GenaiCandidate, GeneratorCandidate, PlainCandidate
from ortfuse.generation.generator import MODEL_FILE
from ortfuse.generation.measure import measure_generations
from ortfuse.generation.plain_loop import input_types
from ortfuse.io.load_and_save import load
from ortfuse.options import Options
from ortfuse.targets.processor import processor_in_full

FOLDER = Path(__file__).parents[1] / ".decoders_full"
COMMAND = "python -m benchmarks.generation.against_genai --write"
STEPS = 16
PRECISIONS = {"": "fp32", "int4": "int4"}
"""Precisions of the builder by what is added to the names of models."""


def save_checkpoint(name: str, folder: Path) -> None:
    """Write the checkpoint of the module that was exported under a name, with a tokenizer of one word for each token."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
    from exporting import select
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from benchmarks.generation.full_cases import CASES

    module = select(CASES, [name])[0].module()
    model = next(one for one in module.modules() if isinstance(one, PreTrainedModel))
    model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id = 1, 2, 0
    model.save_pretrained(folder)
    words = Tokenizer(
        models.WordLevel({f"w{number}": number for number in range(model.config.vocab_size)}, unk_token="w0")
    )
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w1", eos_token="w2", pad_token="w0").save_pretrained(
        folder
    )


def build(checkpoint: Path, folder: Path, precision: str) -> None:
    """Make a model by onnxruntime-genai's builder."""
    from onnxruntime_genai.models.builder import create_model, parse_extra_options

    with tempfile.TemporaryDirectory() as cache:
        asked = (None, str(checkpoint), str(folder), precision, "cpu", cache)
        create_model(*asked, **parse_extra_options(*asked, ["hf_token=false", "hf_remote=false"]))


def _compared(path: Path, marks: tuple[int, ...], rounds: int, threads: int) -> dict[str, Any]:
    longest = max(marks) + STEPS + 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_checkpoint(path.stem, folder / "checkpoint")
        names = fused_decoder(path, Options(), MAX_LENGTH, {}).names
        candidates: dict[str, Candidate] = {"export": PlainCandidate(path, names, input_types(load(path)), threads, {})}
        refused = {}
        for added, precision in PRECISIONS.items():
            made = folder / f"generator{added}"
            generator(path, made, max_length=longest, last_logits=True, int4=bool(added))
            candidates[f"generator {added}".strip()] = GeneratorCandidate(made / MODEL_FILE, threads, {})
            candidates[f"generator {added} in genai".replace("  ", " ")] = GenaiCandidate(made, threads, longest)
            theirs = folder / f"builder{added}"
            try:
                build(folder / "checkpoint", theirs, precision)
                _lengthen(theirs, longest)
                candidates[f"builder {added} in genai".replace("  ", " ")] = GenaiCandidate(theirs, threads, longest)
            except Exception as error:  # whatever the builder raises
                refused[precision] = f"{type(error).__name__}: {error}"[:200]
        found: dict[str, Any] = {"builder_refuses": refused} if refused else {}
        for mark in marks:
            prompt = np.random.default_rng(0).integers(3, 30000, (1, mark))
            measured = measure_generations(candidates, prompt, STEPS, rounds)
            for one in measured.models:
                found.setdefault(one.name, {})[str(mark)] = {
                    "prompt_ms": round(one.first * 1e3, 2),
                    "step_ms": round(statistics.median(one.steps.values()) * 1e3, 3),
                    "ratio": round(one.ratio, 3),
                    "ratio_prompt": round(one.ratio_first, 3),
                    "memory_mb": None if one.memory is None else round(one.memory / 1e6),
                }
        return found


def _lengthen(folder: Path, length: int) -> None:
    """Let a model generate so many tokens: the builder takes the number of positions for the most."""
    file = folder / "genai_config.json"
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    config["search"]["max_length"] = max(length, config["search"]["max_length"])
    file.write_text(json.dumps(config), encoding="utf-8")


def main(
    names: Annotated[
        str, typer.Option("--only", help="Beginnings of names, with commas.")
    ] = "llama,qwen3,mistral,gemma3",
    marks: Annotated[str, typer.Option(help="Numbers of cached tokens to measure at.")] = "32,1000",
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of each; by default as many as there are processors.")] = 0,
    write: Annotated[bool, typer.Option(help="Store the result.")] = False,
    output: Annotated[Path | None, typer.Option(help="File of the raw result.")] = None,
) -> None:
    """Measure generators beside models of onnxruntime-genai's builder."""
    found: dict[str, Any] = {}
    at = tuple(int(one) for one in marks.split(","))
    for path in sorted(FOLDER.glob("*.onnx")):
        if path.stem.startswith(tuple(names.split(","))):
            outcome = call(_compared, path, at, rounds, threads or os.cpu_count(), limit=2400)
            found[path.stem] = outcome.value if outcome.error is None else {"failed": outcome.error}
            print(path.stem, json.dumps(found[path.stem], indent=1), flush=True)
    if write:
        Results("generation.against_genai", output, processor_in_full()).store(COMMAND, found, raw=found)


if __name__ == "__main__":
    typer.run(main)
