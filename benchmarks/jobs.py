"""Every benchmark: its question, its command, and the small part of it that `--quick` runs."""

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
        name: The folder; after a point, the part of it. Names the files of the result, see `benchmarks.results`.
        question: The question that it answers.
        command: The module and its arguments. `{output}` stands for `NAME.json` in the folder of the run, and `{folder}` for that
            folder. A result that goes to `{output}` takes its place when the whole is done.
        quick: The arguments for a small part of it, which stores nothing. `None` if there is none, as where the tests run one.
        summary: Whether it writes a summary.
        models: Whether it needs the full-size models.
        packages: The packages that it needs besides those of the tests.
        answer_no: Whether exit code 1 is an answer (and stored), and not a failure.
    """

    name: str
    question: str
    command: tuple[str, ...]
    quick: tuple[str, ...] | None = None
    summary: bool = True
    models: bool = False
    packages: tuple[str, ...] = ()
    answer_no: bool = False

    @property
    def module(self) -> str:
        """The module that is run."""
        return self.command[0]

    @property
    def stored(self) -> str:
        """The summary's file in `benchmarks/`; empty if the job writes none."""
        return f"summaries/{self.name}.json" if self.summary else ""

    def missing(self) -> str:
        """Return the absent things that it needs, in words; empty if it can run."""
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
        summary=False,
        packages=("torch", "transformers"),
        answer_no=True,
    ),
    Job(
        "exports.web",
        "models of the sizes that browsers run, from PyTorch",
        ("benchmarks.exports.web",),
        summary=False,
        packages=("torch", "transformers"),
        answer_no=True,
    ),
    Job(
        "coverage",
        "which calls of PyTorch does each optimiser turn into fused operators?",
        ("benchmarks.coverage", "--output", "{output}"),
        (f"{GOLDEN}/lstm.ts.onnx", "--tool", "ortfuse", "--output", "{output}"),
        packages=PEERS,
    ),
    Job(
        "coverage.modules",
        "of the calls of PyTorch's own modules, which have their operator?",
        ("benchmarks.coverage.modules",),
    ),
    Job(
        "trust.standard",
        "do the standard's own tests come out the same?",
        ("benchmarks.trust.standard",),
        answer_no=True,
    ),
    Job(
        "trust.rule_tests",
        "do the rule tests pass, and do they notice the loss of a condition?",
        ("benchmarks.trust.rule_tests", "--write"),
        answer_no=True,
    ),
    Job(
        "trust.outputs",
        "which unused outputs may be left out?",
        ("benchmarks.trust.outputs",),
        ("com.microsoft.SkipLayerNormalization",),
        answer_no=True,
    ),
    Job(
        "trust.operators",
        "do facts and results hold for single operators in all their forms?",
        ("benchmarks.trust.operators", "--most", "400", "--jobs", "2", "--write"),
        answer_no=True,
    ),
    Job(
        "trust.pairs",
        "do facts and results hold for pairs of operators?",
        ("benchmarks.trust.operators", "--pairs", "600", "--seed", "11", "--write"),
        answer_no=True,
    ),
    Job(
        "trust.raising",
        "do operators raised to later opsets compute the same?",
        ("benchmarks.trust.raising", "--most", "40", "--write"),
        answer_no=True,
    ),
    Job(
        "trust.readings",
        "do operators mean the same in the opsets by which the runtime reads functions?",
        ("benchmarks.trust.readings", "--most", "30", "--write"),
        ("Softmax", "--most", "4"),
        answer_no=True,
    ),
    Job(
        "trust.control",
        "do random If, Loop and Scan, nested in each other, come out the same?",
        ("benchmarks.trust.control", "--count", "300", "--write"),
        ("--count", "3"),
        answer_no=True,
    ),
    Job(
        "leftovers",
        "which operators are left outside fusions in exports that no golden model has, beside an earlier commit?",
        ("benchmarks.leftovers", "51e0454", "benchmarks/.varied", "--write"),
        packages=("torch", "transformers", "diffusers"),
        answer_no=True,
    ),
    Job(
        "movement",
        "are simplified chains of data movement right, and how much longer than the shortest?",
        ("benchmarks.movement", "--count", "50000", "--small", "2000", "--write"),
        ("--count", "10", "--small", "10"),
        answer_no=True,
    ),
    Job(
        "trust.order",
        "does a result depend on the order in which matches are visited?",
        ("benchmarks.trust.order", "--seeds", "2"),
        ("lstm.ts", "--seeds", "1"),
        answer_no=True,
    ),
    Job(
        "targets.wheels",
        "do results for older releases load and compute the same on the wheels of these releases?",
        ("benchmarks.targets.wheels", "--write"),
        ("1.17.3", "1.20.1", "--model", "llama.sdpa.ts", "--model", "bert.sdpa.ts"),
        answer_no=True,
    ),
    Job(
        "targets.generator_wheels",
        "do generators for older releases write the same on the wheels of these releases?",
        ("benchmarks.targets.generator_wheels", "--write"),
        ("1.20.1", "--model", "llama_cache.sdpa.ts"),
        answer_no=True,
    ),
    Job(
        "targets.openvino",
        "are results for OpenVINO's provider right there, in one partition, and no slower than originals?",
        ("benchmarks.targets.openvino", "--write"),
        ("bert.sdpa.ts", "--rounds", "3"),
        packages=("onnxruntime_ep_openvino",),
        answer_no=True,
    ),
    Job(
        "targets.openvino.own_runtime",
        "are results for openvino right in OpenVINO's own runtime, and no slower than originals?",
        ("benchmarks.targets.openvino.own_runtime", "--write"),
        ("lstm.ts", "--seconds", "0"),
        packages=("openvino",),
        answer_no=True,
    ),
    Job(
        "targets.cuda",
        "on a GPU, are results for CUDA right in both types, and how fast are they beside the transformers optimizer's?",
        ("benchmarks.targets.cuda.report", "benchmarks/.results/cuda", "--write"),
        packages=("onnxruntime_gpu",),
    ),
    Job(
        "targets.portable",
        "of how many nodes are results for the target portable, beside onnxslim and onnxsim, and does every tool read them?",
        ("benchmarks.targets.portable", "benchmarks/.varied", "--write"),
        ("--model", "lstm.ts", "--every", "1"),
        packages=(*PEERS, "openvino"),
        answer_no=True,
    ),
    Job(
        "targets.engines",
        "do other engines than ONNX Runtime take results for the target portable, and compute the same?",
        ("benchmarks.targets.engines", "--write"),
        answer_no=True,
    ),
    Job(
        "targets.web",
        "do results for WebAssembly and WebGPU compute the same there, and how fast are they beside what other optimisers make?",
        ("benchmarks.targets.web", "--write"),
        packages=PEERS,
        answer_no=True,
    ),
    Job(
        "generation",
        "do generators of decoders write the same tokens, and how fast are they after 32 to 4,000 tokens?",
        (
            "benchmarks.generation", "--equal", "benchmarks/.decoders", "--speed", "benchmarks/.decoders_full", "--write",
        ),
        ("--quick",),
        answer_no=True,
    ),
    Job(
        "generation.against_genai",
        "how fast are generators beside the models that onnxruntime-genai's builder makes of the same weights?",
        ("benchmarks.generation.against_genai", "--write"),
        packages=("torch", "transformers", "onnxruntime_genai"),
        answer_no=True,
    ),
    Job(
        "generation.in_optimum",
        "how fast are exports and generators in Optimum, beside `ortfuse.Generator`?",
        ("benchmarks.generation.in_optimum", "--write"),
        packages=("torch", "optimum"),
    ),
    Job(
        "generation.shared_prefix",
        "how much faster are batches of prompts whose common first tokens are computed once?",
        ("benchmarks.generation.shared_prefix", "--write"),
        ("--quick",),
        answer_no=True,
    ),
    Job(
        "generation.blocks",
        "how fast are products of one token with weights of 4 and 8 bits, by the rows of a block?",
        ("benchmarks.generation.blocks", "--write"),
        ("--quick",),
    ),
    Job(
        "targets.table",
        "on each target, do results load and compute the same, and how fast are they beside four other tools' results?",
        ("benchmarks.targets.table", "--write"),
        (
            "--targets", "cpu,portable", "--model", "lstm.ts", "--models", "{folder}", "--rounds", "6", "--seconds", "0",
            "--output", "{output}",
        ),
        models=True,
        packages=("onnxscript", *PEERS),
        answer_no=True,
    ),
    Job(
        "trust.downstream",
        "do other tools take results as they take originals?",
        ("benchmarks.trust.downstream", "--output", "{output}"),
        ("lstm.ts", "--tool", "quantize_dynamic", "--show"),
        packages=(*PEERS, "openvino"),
        answer_no=True,
    ),
    Job(
        "trust.sensitive",
        "do verdicts tell wrong rewrites from right ones on models that amplify rounding?",
        ("benchmarks.trust.sensitive", "--output", "{output}"),
    ),
    Job(
        "trust.files",
        "does a damaged or odd file do harm?",
        ("tests.fuzz.files", "--step", "7", "--output", "{output}"),
        ("--base", "gelu", "--step", "40", "--output", "{output}"),
        answer_no=True,
    ),
    Job(
        "trust.fuzz",
        "do random models compute the same?",
        ("tests.fuzz", "--minutes", "12", "--seed", "20000", "--nearly"),
        answer_no=True,
    ),
    Job(
        "engine",
        "how long does the engine take, beside others and over the size of a graph?",
        ("benchmarks.engine", "--rounds", "3", "--write"),
        ("--models", "{folder}", "--rounds", "1", "--size", "300"),
        models=True,
        packages=("onnxslim",),
    ),
    Job(
        "engine.lists",
        "what do the pass lists of families save?",
        ("benchmarks.engine.lists",),
        ("lstm.ts",),
    ),
    Job(
        "passes",
        "how much does each pass save on each family of models?",
        ("benchmarks.passes", "--output", "{output}"),
        ("cse", "--model", "lstm.ts", "--output", "{output}"),
    ),
    Job(
        "passes.full",
        "how much does each pass save on exports of full size?",
        ("benchmarks.passes", "--models", "benchmarks/.models", "--output", "{output}"),
        models=True,
    ),
    Job(
        "rules",
        "in which models does each rule, and each pass, save something?",
        ("benchmarks.rules", "--jobs", "2", "--output", "{output}"),
        ("gelu", "--source", "golden", "--model", "loss.ts", "--output", "{output}"),
    ),
    Job(
        "kernels",
        "are the runtime's kernels right, what do they refuse, how fast are they?",
        ("benchmarks.kernels", "--write"),
        ("--operator", "Gelu", "--no-timing"),
        summary=False,
    ),
    Job(
        "kernels.slow_kernels",
        "which operators have kernels slower than an equivalent spelling?",
        ("benchmarks.kernels.slow_kernels", "--write"),
        ("hardswish", "--rounds", "2"),
    ),
    Job(
        "latency",
        "how fast are results, beside what other optimisers make?",
        ("benchmarks.latency", "--output", "{output}"),
        (
            "lstm.ts", "--models", GOLDEN, "--tool", "ortfuse", "--rounds", "6", "--output", "{output}",
            "--prepared", "{folder}",
        ),
        models=True,
        packages=PEERS,
    ),
    Job(
        "one_token",
        "how much work and time does it save to compute only the token that is read in the last layer?",
        ("benchmarks.one_token", "--write"),
        ("vit.sdpa.ts", "--models", GOLDEN, "--rounds", "3"),
        packages=("torch", "transformers"),
        answer_no=True,
    ),
    Job(
        "latency.settings",
        "how much faster do session settings make a result?",
        ("benchmarks.latency.settings", "--output", "{output}"),
        models=True,
    ),
    Job(
        "padding_free",
        "how much faster are encoders without padding, and are they right whatever hidden tokens hold?",
        ("benchmarks.padding_free", "--write", "--output", "{output}"),
        ("--quick", "--output", "{output}"),
        packages=("torch", "transformers"),
    ),
    Job(
        "other_runtime",
        "what does another runtime, OpenVINO, make of the same exports?",
        ("benchmarks.other_runtime", "--output", "{output}"),
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
        models=True,
    ),
    Job(
        "precision.quantised",
        "how fast are models that the runtime's quantiser has made, before and after ortfuse?",
        ("benchmarks.precision.quantised", "--output", "{output}"),
        ("resnet.ts", "--models", GOLDEN, "--rounds", "6", "--output", "{output}"),
        models=True,
    ),
    Job(
        "precision.seeds",
        "does the bound hold on inputs that no search has seen?",
        ("benchmarks.precision.seeds", "--output", "{output}"),
        ("lstm.ts", "--seeds", "1", "--output", "{output}"),
    ),
    Job(
        "precision.rounding",
        "by how much do inputs lower the error of rounded weights?",
        ("benchmarks.precision.rounding", "--output", "{output}"),
        packages=("torch", "transformers"),
    ),
    Job(
        "precision.trained",
        "do trained models decide the same when they are quantised?",
        ("benchmarks.precision.trained", "--output", "{output}"),
        packages=("magika", "silero_vad"),
    ),
    Job(
        "weights",
        "how much time and memory do weights take from file to file?",
        (
            "benchmarks.weights", "--model", "benchmarks/.models/bert.sdpa.ts.onnx", "--peers",
            "--decoder", "2", "--decoder", "40", "--write",
        ),
        ("--model", f"{GOLDEN}/lstm.ts.onnx", "--rounds", "1", "--folder", "{folder}"),
        models=True,
        packages=("torch", "transformers", *PEERS),
    ),
    Job(
        "calibration",
        "does a calibrated table choose what measuring every site would?",
        ("benchmarks.calibration", "--calibration", "{folder}/table.json"),
    ),
    Job(
        "tuner",
        "does the tuner beat every fixed list, and random search?",
        ("benchmarks.tuner", "--output", "{output}"),
        models=True,
        packages=("optuna",),
    ),
)  # fmt: skip

STANDALONE: Mapping[str, str] = {
    "benchmarks.engine.against": "engine time beside another commit, which has to be named",
    "benchmarks.engine.startup": "start-up time beside another commit, which has to be named",
    "benchmarks.exports.saved_by_runtime": "models as the runtime saves them, for the benchmark of rules",
    "benchmarks.exports.unseen": "models of architectures that are not golden, to try coverage on",
    "benchmarks.generation.exports": "exports decoders with caches, small ones or with --full of real size",
    "benchmarks.generation.run_in_optimum": "generates in Optimum, for benchmarks.generation.in_optimum",
    "benchmarks.exports.varied": "models in many styles, by both exporters at many opsets, to compare commits on",
    "benchmarks.kernels.costs": "writes the table of costs that is shipped, for this kind of processor",
    "benchmarks.kernels.release_costs": "writes the tables of costs that are shipped for older releases of the runtime",
    "benchmarks.latency.declared_sizes": "latency with names of sizes declared, on models that have to be named",
    "benchmarks.one_token.exports": "models of which one token is read, for the benchmark of these",
    "benchmarks.targets.web.kernels": "writes the kernel tables of WebAssembly and WebGPU that are shipped",
    "benchmarks.targets.openvino.kernels": "writes the kernel table of OpenVINO's provider that is shipped",
    "benchmarks.targets.cuda.device": "all checks on a machine with a GPU, which benchmarks/targets/cuda.sh starts",
    "benchmarks.targets.cuda.diagnose": "finds the node at which a GPU computes something else",
    "benchmarks.targets.cuda.padding": "encoders without padding on a GPU, a step of benchmarks.targets.cuda.device",
    "benchmarks.targets.cuda.goldens": "golden models on a GPU, a step of benchmarks.targets.cuda.device",
    "benchmarks.targets.cuda.kernels": "writes the kernel tables of CUDA that are shipped",
    "benchmarks.targets.cuda.latency": "latency on a GPU, a step of benchmarks.targets.cuda.device",
    "benchmarks.targets.cuda.operators": "operators on a GPU, a step of benchmarks.targets.cuda.device",
    "benchmarks.targets.run_in_engine": "runs one model in another engine, for benchmarks.targets.engines",
    "benchmarks.targets.cells": "checks and measures one model on one target, for benchmarks.targets.table",
    "benchmarks.targets.documented": "writes the kernel table of a target that is known from documentation alone",
    "benchmarks.targets.releases": "writes the table of releases of the runtime that is shipped",
}
"""Programs that no job runs, with the reason."""


def chosen(names: Sequence[str], jobs: Sequence[Job] = JOBS) -> list[Job]:
    """The jobs of some names: a question with all its parts, or one part; all of them if none is named.

    Raises:
        ValueError: There is no job of a name.
    """
    for name in names:
        if not any(f"{job.name}.".startswith(f"{name}.") for job in jobs):
            raise ValueError(f"there is no benchmark {name}; there are {', '.join(job.name for job in jobs)}")
    return [job for job in jobs if not names or any(f"{job.name}.".startswith(f"{name}.") for name in names)]
