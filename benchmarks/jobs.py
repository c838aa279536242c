"""What there is to measure: every benchmark as a command, and the small part of it that `--quick` runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "benchmarks" / ".models"
"""The full-size models, which the first job exports."""

PEERS = ("onnxslim", "onnxsim")
GOLDEN = "golden/models"


@dataclass(frozen=True)
class Job:
    """A benchmark.

    Attributes:
        name: The folder, which is the question; after a point, the part of it.
        question: What it answers.
        command: The module, and its arguments. `{output}` stands for a file in the folder of the run, named like the stored
            result, and `{folder}` for that folder.
        quick: The arguments for a small part of it, which stores nothing; `None` if there is none, as where the tests run one.
        stored: The file with the result, in `benchmarks/`; empty if there is none. Where the command is given `{output}`, it goes
            there from the folder of the run when the whole is done.
        models: Whether it needs the full-size models.
        packages: The packages that it needs besides those of the tests.
        answer_no: Whether exit code 1 is an answer (and stored), and not a failure.
    """

    name: str
    question: str
    command: tuple[str, ...]
    quick: tuple[str, ...] | None = None
    stored: str = ""
    models: bool = False
    packages: tuple[str, ...] = ()
    answer_no: bool = False

    @property
    def module(self) -> str:
        """The module that is run."""
        return self.command[0]

    def missing(self) -> str:
        """What it needs and is not there, in words; empty if it can run."""
        absent = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if absent:
            return f"needs {', '.join(absent)}"
        if self.models and not any(MODELS.glob("*.onnx")):
            return "needs the full-size models: python -m benchmarks --only exports"
        return ""


JOBS: Sequence[Job] = (
    Job(
        "exports",
        "the full-size models to measure on, from PyTorch",
        ("benchmarks.exports.full",),
        packages=("torch", "transformers"),
        answer_no=True,
    ),
    Job(
        "coverage",
        "which calls of PyTorch does each optimiser turn into fused operators?",
        ("benchmarks.coverage", "--output", "{output}"),
        (f"{GOLDEN}/lstm.ts.onnx", "--tool", "ortfuse", "--output", "{output}"),
        "coverage/coverage.json",
        packages=PEERS,
    ),
    Job(
        "coverage.modules",
        "of the calls of PyTorch's own modules, which have their operator?",
        ("benchmarks.coverage.modules",),
        stored="coverage/modules.json",
    ),
    Job(
        "trust.standard",
        "do the standard's own tests come out the same?",
        ("benchmarks.trust.standard",),
        stored="trust/standard.json",
        answer_no=True,
    ),
    Job(
        "trust.proofs",
        "are all rules proved, and do proofs notice conditions that are lost?",
        ("benchmarks.trust.proofs", "--write"),
        stored="trust/proofs.json",
        answer_no=True,
    ),
    Job(
        "trust.outputs",
        "which outputs may be left out if nobody uses them?",
        ("benchmarks.trust.outputs",),
        ("com.microsoft.SkipLayerNormalization",),
        "trust/outputs.json",
        answer_no=True,
    ),
    Job(
        "trust.operators",
        "do facts and results hold for single operators in all their forms?",
        ("benchmarks.trust.operators", "--most", "400", "--jobs", "2", "--write"),
        stored="trust/operators.json",
        answer_no=True,
    ),
    Job(
        "trust.pairs",
        "do they for pairs of operators?",
        ("benchmarks.trust.operators", "--pairs", "600", "--seed", "11", "--write"),
        stored="trust/pairs.json",
        answer_no=True,
    ),
    Job(
        "trust.raising",
        "do operators raised to later opsets compute the same?",
        ("benchmarks.trust.raising", "--most", "40", "--write"),
        stored="trust/raising.json",
        answer_no=True,
    ),
    Job(
        "trust.readings",
        "do operators mean the same in the opsets by which the runtime reads functions?",
        ("benchmarks.trust.readings", "--most", "30", "--write"),
        ("Softmax", "--most", "4"),
        stored="trust/readings.json",
        answer_no=True,
    ),
    Job(
        "trust.control",
        "do random If, Loop and Scan, nested in each other, come out the same?",
        ("benchmarks.trust.control", "--count", "300", "--write"),
        ("--count", "3"),
        "trust/control.json",
        answer_no=True,
    ),
    Job(
        "trust.order",
        "does the order in which sites are visited matter?",
        ("benchmarks.trust.order", "--seeds", "2"),
        ("lstm.ts", "--seeds", "1"),
        "trust/order.json",
        answer_no=True,
    ),
    Job(
        "trust.after",
        "do other tools take results as they take originals?",
        ("benchmarks.trust.after", "--output", "{output}"),
        ("lstm.ts", "--tool", "quantize_dynamic", "--show"),
        "trust/after.json",
        packages=(*PEERS, "openvino"),
        answer_no=True,
    ),
    Job(
        "trust.sensitive",
        "do verdicts tell wrong rewrites from right ones on models that amplify rounding?",
        ("benchmarks.trust.sensitive", "--output", "{output}"),
        stored="trust/sensitive.json",
    ),
    Job(
        "trust.files",
        "damaged and odd files",
        ("tests.fuzz.files", "--step", "7", "--output", "{output}"),
        ("--base", "gelu", "--step", "40", "--output", "{output}"),
        "trust/files.json",
        answer_no=True,
    ),
    Job(
        "trust.fuzz",
        "random models",
        ("tests.fuzz", "--minutes", "12", "--seed", "20000", "--nearly"),
        stored="trust/fuzz.json",
        answer_no=True,
    ),
    Job(
        "engine",
        "how long does the engine take, beside others and over the size of a graph?",
        ("benchmarks.engine", "--rounds", "3", "--write"),
        ("--models", "{folder}", "--rounds", "1", "--size", "300"),
        "engine/engine.json",
        models=True,
        packages=("onnxslim",),
    ),
    Job(
        "engine.lists",
        "what do the pass lists of families save?",
        ("benchmarks.engine.lists",),
        ("lstm.ts",),
        "engine/lists.json",
    ),
    Job(
        "passes",
        "what does each pass and each rule buy on each family of models?",
        ("benchmarks.passes", "--output", "{output}"),
        ("gelu", "--model", "lstm.ts", "--output", "{output}"),
        "passes/passes.json",
    ),
    Job(
        "passes.full",
        "what does each pass buy on exports of full size?",
        ("benchmarks.passes", "--models", "benchmarks/.models", "--no-rules", "--output", "{output}"),
        stored="passes/full.json",
        models=True,
    ),
    Job(
        "kernels",
        "are the runtime's kernels right, what do they refuse, how fast are they?",
        ("benchmarks.kernels", "--write"),
        ("--operator", "Gelu", "--no-timing"),
    ),
    Job(
        "kernels.cliffs",
        "which operators are slower than another spelling of them?",
        ("benchmarks.kernels.cliffs", "--write"),
        ("hardswish", "--rounds", "2"),
        "kernels/cliffs.json",
    ),
    Job(
        "latency",
        "how fast are results, beside what other optimisers make?",
        ("benchmarks.latency", "--output", "{output}"),
        (
            "lstm.ts", "--models", GOLDEN, "--tool", "ortfuse", "--rounds", "6", "--output", "{output}",
            "--prepared", "{folder}",
        ),
        "latency/latency.json",
        models=True,
        packages=PEERS,
    ),
    Job(
        "latency.settings",
        "what do settings of a session buy for results?",
        ("benchmarks.latency.settings", "--output", "{output}"),
        stored="latency/settings.json",
        models=True,
    ),
    Job(
        "outside",
        "what does another runtime, OpenVINO, make of the same exports?",
        ("benchmarks.outside", "--output", "{output}"),
        stored="outside/outside.json",
        models=True,
        packages=("openvino", "nncf"),
    ),
    Job(
        "precision",
        "how fast is the fastest model under an error bound, beside the runtime's quantisers?",
        ("benchmarks.precision", "--output", "{output}"),
        (
            "lstm.ts", "--models", GOLDEN, "--tool", "float32", "--rounds", "6", "--output", "{output}",
            "--prepared", "{folder}",
        ),
        "precision/precision.json",
        models=True,
    ),
    Job(
        "precision.quantised",
        "how fast are models that the runtime's quantiser has made, before and after ortfuse?",
        ("benchmarks.precision.quantised", "--output", "{output}"),
        ("resnet.ts", "--models", GOLDEN, "--rounds", "6", "--output", "{output}"),
        "precision/quantised.json",
        models=True,
    ),
    Job(
        "precision.seeds",
        "does the bound hold on inputs that no search has seen?",
        ("benchmarks.precision.seeds", "--output", "{output}"),
        ("lstm.ts", "--seeds", "1", "--output", "{output}"),
        "precision/seeds.json",
    ),
    Job(
        "precision.rounding",
        "what do inputs buy when weights are rounded?",
        ("benchmarks.precision.rounding", "--output", "{output}"),
        stored="precision/rounding.json",
        packages=("torch", "transformers"),
    ),
    Job(
        "precision.trained",
        "do trained models decide the same when they are quantised?",
        ("benchmarks.precision.trained", "--output", "{output}"),
        stored="precision/trained.json",
        packages=("magika", "silero_vad"),
    ),
    Job(
        "weights",
        "what does it take to bring weights from file to file?",
        (
            "benchmarks.weights", "--model", "benchmarks/.models/bert.sdpa.ts.onnx", "--peers",
            "--decoder", "2", "--decoder", "40", "--write",
        ),
        ("--model", f"{GOLDEN}/lstm.ts.onnx", "--rounds", "1", "--folder", "{folder}"),
        "weights/weights.json",
        models=True,
        packages=("torch", "transformers", *PEERS),
    ),
    Job(
        "calibration",
        "does a calibrated table choose what measuring every site would?",
        ("benchmarks.calibration", "--calibration", "{folder}/table.json"),
        stored="calibration/calibration.json",
    ),
    Job(
        "tuner",
        "does the tuner beat every fixed list, and random search?",
        ("benchmarks.tuner", "--output", "{output}"),
        stored="tuner/tuner.json",
        models=True,
        packages=("optuna",),
    ),
)  # fmt: skip

APART: Mapping[str, str] = {
    "benchmarks.engine.against": "engine time beside another commit, which has to be named",
    "benchmarks.exports.unseen": "models of architectures that are not golden, to try coverage on",
    "benchmarks.kernels.costs": "writes the table of costs that is shipped, for this kind of processor",
    "benchmarks.latency.declared_sizes": "whether names of sizes pay on models that have to be named",
}
"""What is run by itself, and why."""


def chosen(names: Sequence[str], jobs: Sequence[Job] = JOBS) -> list[Job]:
    """The jobs of some names: a question with all its parts, or one part; all of them if none is named.

    Raises:
        ValueError: There is no job of a name.
    """
    for name in names:
        if not any(f"{job.name}.".startswith(f"{name}.") for job in jobs):
            raise ValueError(f"there is no benchmark {name}; there are {', '.join(job.name for job in jobs)}")
    return [job for job in jobs if not names or any(f"{job.name}.".startswith(f"{name}.") for name in names)]
