"""All checks on a machine with a GPU, in one command of a few minutes; `benchmarks/targets/cuda.sh` prepares and calls it.

    python -m benchmarks.targets.cuda.device OUT --seconds 420              # on a GPU
    python -m benchmarks.targets.cuda.device OUT --place cpu --seconds 420  # the same steps where there is none

Each step is a process with a limit, and writes what it finds at once: a step that fails, hangs or ends the device's context costs
nothing but itself. Exports and their variants are made on processors beside the steps that use the device.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.targets.cuda import goldens, latency, operators

PACKAGES = (
    "torch",
    "transformers",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "numpy",
    "ml_dtypes",
)
SHARE = {"operators": 90.0, "goldens": 140.0, "registry": 60.0, "padding": 40.0}
"""Seconds for the steps, at most."""


PADDED = ("bert.sdpa.ts",)
"""Exports that are measured without padding."""

DIAGNOSED = (("segformer.sdpa.ts", "--half", "--size", "batch=3"), ("bert.sdpa.ts",), ("gpt2_cache.sdpa.ts",))
"""Arguments of `benchmarks.targets.cuda.diagnose`, for results that were off."""


class Steps:
    """Run steps, and keep a log of them.

    Args:
        out: The folder of results.
        seconds: The time for all.
    """

    def __init__(self, out: Path, seconds: float) -> None:
        self.out, self.end, self._log = out, time.monotonic() + seconds, out / "log.txt"
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line and keep it."""
        line = f"[{time.monotonic() - self._started:5.0f} s] {text}"
        print(line, flush=True)
        with self._log.open("a") as file:
            file.write(line + "\n")

    def left(self, most: float = float("inf")) -> float:
        """The seconds that are left, or at most so many."""
        return max(1.0, min(most, self.end - time.monotonic()))

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a module as a process; what it prints goes to the log."""
        with self._log.open("ab") as file:
            return subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=file, stderr=file)

    def run(self, name: str, most: float, module: str, *arguments: str) -> int:
        """Run a module for at most so many seconds; returns its exit code, 124 if the time was up."""
        limit = self.left(most)
        self.say(f"{name}: begins, {limit:.0f} s at most")
        return self.wait(name, self.start(module, *arguments), limit)

    def wait(self, name: str, process: subprocess.Popen[bytes], limit: float) -> int:
        """Wait for a process, and end it when its time is up."""
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = 124
        self.say(f"{name}: ended with {code}")
        return code


def versions(place: str) -> dict[str, Any]:
    """The packages, versions and device of this machine."""
    found: dict[str, Any] = {"python": platform.python_version(), "processors": os.cpu_count()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    if place == "cuda":
        asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        found["gpu"] = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    import onnxruntime

    found["build"], found["providers"] = onnxruntime.__version__, onnxruntime.get_available_providers()
    return found


def registry() -> str:
    """How the kernels of the installed build differ from the stored table, in words."""
    from benchmarks.targets.cuda.kernels import installed_table
    from ortfuse.targets.cuda import TARGET
    from ortfuse.targets.release_kernel_tables import releases_of

    found, releases = installed_table(), releases_of(TARGET)
    assert releases is not None
    stored = releases.table(".".join(map(str, found.release)))
    kernels = {key: operator.kernels for key, operator in found.operators.items() if operator.kernels}
    known = {key: operator.kernels for key, operator in stored.operators.items() if operator.kernels}
    apart = sorted(key for key in {*kernels, *known} if set_of(kernels.get(key)) != set_of(known.get(key)))
    return f"{found.runtime}: {len(kernels)} operators with kernels, {len(apart)} differ from the stored table: {apart[:20]}"


def set_of(kernels: Any) -> Any:
    """Kernels without their order."""
    return {(k.first, k.last, tuple(sorted((n, tuple(sorted(t))) for n, t in k.types.items()))) for k in kernels or ()}


def all_operators(steps: Steps, place: str) -> None:
    """Try all operators with small heads and with those that fused kernels take."""
    out = steps.out / "operators.jsonl"
    end = time.monotonic() + steps.left(SHARE["operators"])
    for size in (64, 8):
        for _ in range(40):
            most = end - time.monotonic()
            if most < 3:
                break
            code = steps.run(f"operators of size {size}", most, "benchmarks.targets.cuda.operators", str(out),
                             "--place", place, "--size", str(size))  # fmt: skip
            if code == 0:
                break
    if out.exists():
        steps.say(operators.summary(out).splitlines()[-1])


def all_goldens(steps: Steps, place: str, models: list[str], processes: int) -> None:
    """Try golden models, several at a time."""
    parts = [models[number::processes] for number in range(processes)]
    files = [steps.out.parent / f"goldens.{number}.jsonl" for number in range(processes)]
    limit = steps.left(SHARE["goldens"])
    for file in files:
        file.unlink(missing_ok=True)
    started = [
        steps.start("benchmarks.targets.cuda.goldens", str(file), *part, "--place", place)
        for file, part in zip(files, parts, strict=True)
        if part
    ]
    end = time.monotonic() + limit
    out = steps.out / "goldens.jsonl"
    while any(process.poll() is None for process in started) and time.monotonic() < end:
        time.sleep(1)
        out.write_text("".join(file.read_text() for file in files if file.exists()))
    for process in started:
        if process.poll() is None:
            process.kill()
            steps.say("goldens: a process was ended, as its time was up")
    out.write_text("".join(file.read_text() for file in files if file.exists()))
    steps.say(f"goldens\n{goldens.summary(out)}")


def main(
    out: Annotated[Path, typer.Argument(help="Folder of results.")],
    place: Annotated[str, typer.Option(help="cuda, or cpu where there is no GPU.")] = "cuda",
    seconds: Annotated[float, typer.Option(help="The time for all.")] = 420,
    models: Annotated[Path, typer.Option(help="Folder of exports, which may be there already.")] = Path("/tmp/models"),
    only: Annotated[str, typer.Option(help="Steps, separated by commas; all if none is named.")] = "",
    export: Annotated[list[str] | None, typer.Option(help="Exports to measure; by default all.")] = None,
    golden: Annotated[list[str] | None, typer.Option(help="Golden models to try; by default all.")] = None,
    processes: Annotated[int, typer.Option(help="Processes that prepare models, and that try golden models.")] = 8,
) -> None:
    """Run all steps."""
    out.mkdir(parents=True, exist_ok=True)
    models.mkdir(parents=True, exist_ok=True)
    steps, chosen = Steps(out, seconds), set(filter(None, only.split(",")))

    def wanted(step: str) -> bool:
        return not chosen or step in chosen

    found = versions(place)
    (out / "versions.json").write_text(json.dumps(found, indent=1))
    steps.say(json.dumps(found))
    preparing = start_preparing(steps, models, list(export or latency.MODELS), processes) if wanted("latency") else []
    if wanted("operators"):
        all_operators(steps, place)
    if "diagnose" in chosen:
        for arguments in DIAGNOSED:
            steps.run(
                f"diagnose {' '.join(arguments)}", 60, "benchmarks.targets.cuda.diagnose", *arguments, "--place", place
            )
    if wanted("latency"):
        others = ("goldens", SHARE["goldens"]), ("padding", SHARE["padding"]), ("registry", 15.0), ("calibrate", 45.0)
        most = max(20.0, steps.left() - sum(share for step, share in others if wanted(step)))
        # Models prepared beside the measurement would disturb it: most are done by now.
        steps.run("latency", most + 15, "benchmarks.targets.cuda.latency", "measure", str(models), str(out / "latency.jsonl"),
                  "--place", place, "--seconds", str(most - 10), "--wait", "150")  # fmt: skip
    for process in preparing:
        process.kill()
    if (out / "latency.jsonl").exists():
        steps.say(latency.table([json.loads(line) for line in (out / "latency.jsonl").read_text().splitlines()]))
    if wanted("goldens"):
        all_goldens(steps, place, list(golden or goldens.MODELS), processes)
    padded = [name for name in PADDED if (models / f"{name}.onnx").exists()]
    if wanted("padding") and padded:
        steps.run("padding", SHARE["padding"], "benchmarks.targets.cuda.padding", str(models), str(out / "padding.jsonl"),
                  *padded, "--place", place)  # fmt: skip
    if wanted("registry"):
        program = "from benchmarks.targets.cuda.device import registry; print(registry())"
        try:
            asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                                   timeout=steps.left(SHARE["registry"]), check=False)  # fmt: skip
            steps.say(f"registry: {asked.stdout.strip() or asked.stderr.strip()[-400:]}")
        except subprocess.TimeoutExpired:
            steps.say("registry: no answer in time")
    if wanted("calibrate") and steps.left() > 20:
        steps.run("calibrate", steps.left(), "ortfuse", "calibrate", "--target", place,
                  "--budget", f"{steps.left() * 0.7:.0f}s", "--json", str(out / "calibrated.json"))  # fmt: skip
    steps.say("done")


def start_preparing(steps: Steps, models: Path, names: list[str], processes: int) -> list[subprocess.Popen[bytes]]:
    """Start processes that export models and make their variants, each some of them."""
    program = "import sys; from benchmarks.targets.cuda.device import prepare_all; prepare_all(*sys.argv[1:])"
    started = []
    for number in range(processes):
        with (steps.out / "prepared.txt").open("ab") as file:
            command = [sys.executable, "-c", program, str(models), *names[number::processes]]
            few = {**os.environ, "OMP_NUM_THREADS": "2"}
            started.append(subprocess.Popen(command, stdout=file, stderr=file, env=few))
    return started


def prepare_all(models: str, *names: str) -> None:
    """Prepare models one after another, each in a process of its own."""
    for name in names:
        command = [sys.executable, "-m", "benchmarks.targets.cuda.latency", "prepare", models, name]
        subprocess.run(command, timeout=400, check=False)


if __name__ == "__main__":
    typer.run(main)
