"""Nodes of results for the target portable, beside those of onnxslim and onnxsim at equal opset; and are results always readable?

    python -m benchmarks.targets.portable benchmarks/.varied                # these models and the golden ones
    python -m benchmarks.targets.portable --model bert                     # models whose names contain this word
    python -m benchmarks.targets.portable benchmarks/.varied --write       # writes the summary

Nodes are counted in the main graph, in bodies and in functions; Constant nodes count for nobody. Each optimiser runs in a process
of its own, under a time limit. Each result is checked by ONNX's checker and its strict shape inference, and compared with the
original in ONNX Runtime; of every `--every`th model, the version converter, ONNX's reference evaluator and OpenVINO read it too.
"""

from __future__ import annotations

import importlib.util
import json
import random
import statistics
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnx.version_converter
import typer

from benchmarks import isolated, peers
from benchmarks.results import Results

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
COMMAND = "python -m benchmarks.targets.portable benchmarks/.varied --write"
PEERS = ("onnxslim", "onnxsim")
_NO_EARLIER = "No Previous Version"
"""The converter's words for operators that are newer than the opset below, which fusions make."""

LIMIT = 120.0
"""The seconds that one optimiser has for one model."""


def counted(model: onnx.ModelProto) -> Counter[str]:
    """Count the nodes of a model by operator, those of bodies and functions included, without Constant nodes."""
    found: Counter[str] = Counter()
    waiting: list[Any] = [model.graph, *model.functions]
    while waiting:
        for node in waiting.pop().node:
            found[f"{node.domain}.{node.op_type}".removeprefix(".")] += node.op_type != "Constant"
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else [*attribute.graphs]
    return +found


def opset_of(model: onnx.ModelProto) -> int:
    """Return the ai.onnx opset that a model imports."""
    return max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=1)


def ours(source: Path, target: Path, verified: bool) -> dict[str, Any]:
    """Optimise for portable at the opset of the model, and compare with the original if asked; returns the verdict."""
    import ortfuse

    opset = opset_of(onnx.load(source, load_external_data=False))
    result = ortfuse.optimize(
        source, target="portable", max_opset=opset, output=target, loaded=verified, verify=verified, verify_budget=20.0
    )
    return {"verdict": None if result.verdict is None else result.verdict.summary(), "notes": [*result.report.notes]}


def checked(source: Path) -> str | None:
    """Check by ONNX's full checker and by strict shape inference; returns what they say against a model."""
    model = onnx.load(source)
    for name, check in (
        ("checker", lambda: onnx.checker.check_model(model, full_check=True)),
        ("inference", lambda: onnx.shape_inference.infer_shapes(model, True, True, True)),
    ):
        try:
            check()
        except Exception as error:  # these functions raise several kinds
            return f"{name}: {' '.join(str(error).split())[:300]}"
    return None


def converted(source: Path, step: int) -> str | None:
    """Convert a model one opset up or down with ONNX's version converter; returns why that fails."""
    model = onnx.load(source)
    opset = opset_of(model) + step
    try:
        onnx.checker.check_model(onnx.version_converter.convert_version(model, opset))
    except Exception as error:
        return f"to opset {opset}: {' '.join(str(error).split())[:200]}"
    return None


def evaluated(original: Path, result: Path) -> str | None:
    """Evaluate a result by ONNX's reference evaluator on generated inputs; returns how it differs from the original.

    An original that the evaluator cannot run either says nothing about the result.
    """
    import onnx_ir as ir
    from onnx.reference import ReferenceEvaluator

    from ortfuse.verification import experiments

    found, _ = experiments(ir.load(original), reference=False)
    feeds = dict(found[0].inputs)
    try:
        made = ReferenceEvaluator(str(result)).run(None, feeds)
    except Exception as error:
        return None if _fails(original, feeds) else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    for name, one in zip(found[0].expected, made, strict=True):
        expected = np.asarray(found[0].expected[name])
        if one.shape != expected.shape or not np.allclose(one, expected, rtol=1e-2, atol=1e-3, equal_nan=True):
            return None if _fails(original, feeds, expected) else f"other values of {name}"
    return None


def _fails(original: Path, feeds: dict[str, Any], expected: Any = None) -> bool:
    """Whether the evaluator does not run the original, or gives other values of it than ONNX Runtime."""
    from onnx.reference import ReferenceEvaluator

    try:
        made = ReferenceEvaluator(str(original)).run(None, feeds)
    except Exception:
        return True
    return expected is not None and not any(
        one.shape == expected.shape and np.allclose(one, expected, rtol=1e-2, atol=1e-3, equal_nan=True) for one in made
    )


def compiled(source: Path) -> None:
    """Read a model by OpenVINO and compile it for the CPU."""
    import openvino

    core = openvino.Core()
    core.compile_model(core.read_model(source), "CPU")


def row(source: Path, scratch: Path, *, sampled: bool, verified: bool) -> dict[str, Any]:
    """Return the figures of one model.

    Args:
        source: The model.
        scratch: A folder for results.
        sampled: Whether other readers than the checker are tried.
        verified: Whether the result is compared with the original.
    """
    found: dict[str, Any] = {"opset": opset_of(onnx.load(source, load_external_data=False)), "nodes": {}, "foreign": {}}
    for name in PEERS:
        target = scratch / f"{name}.onnx"
        outcome = isolated.call(getattr(peers, name), source, target, limit=LIMIT)
        found["nodes"][name] = outcome.error or _count(target, found["foreign"], name)
    target = scratch / "ours.onnx"
    outcome = isolated.call(ours, source, target, verified, limit=LIMIT)
    found |= {"error": outcome.error} if outcome.error else outcome.value
    if outcome.error:
        return found
    found["nodes"]["ours"] = _count(target, found["foreign"], "ours")
    found["checker"] = isolated.call(checked, target, limit=LIMIT).value
    if sampled:
        found["readers"] = _readers(source, target)
    return found


def _measured(source: Path, sampled: bool, verified: bool) -> tuple[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        return source.stem, row(source, Path(scratch), sampled=sampled, verified=verified)


def _count(path: Path, foreign: dict[str, int], name: str) -> int:
    nodes = counted(onnx.load(path, load_external_data=False))
    if outside := sum(count for operator, count in nodes.items() if operator.startswith("com.microsoft.")):
        foreign[name] = outside
    return nodes.total()


def _readers(source: Path, target: Path) -> dict[str, str]:
    """Try other readers on a result; returns what each says against it, where it takes the original."""
    found = {}
    for step in (-1, 1):
        wrong, before = (isolated.call(converted, path, step, limit=LIMIT) for path in (target, source))
        text = wrong.error or wrong.value
        if text and _NO_EARLIER not in text and not (before.error or before.value):
            found[f"version converter {step:+d}"] = text
    outcome = isolated.call(evaluated, source, target, limit=LIMIT)
    if (text := outcome.error or outcome.value) and "not done after" not in text:
        found["reference evaluator"] = text
    if importlib.util.find_spec("openvino") is not None:
        outcome = isolated.call(compiled, target, limit=LIMIT)
        if outcome.error and not isolated.call(compiled, source, limit=LIMIT).error:
            found["OpenVINO"] = outcome.error
    return found


def figures(rows: dict[str, dict[str, Any]], known: int) -> dict[str, Any]:
    """Return the figures over the models that were measured, of `known` ones: a stopped run has fewer, in random order.

    Peers that make com.microsoft operators are left out of the comparison for that model, as no plain reader takes these.
    """
    ratios, more, failures, unread, tried, verified = [], {}, {}, {}, 0, 0
    for name, one in rows.items():
        if "error" in one:
            failures[name] = one["error"]
            continue
        verified += one["verdict"] is not None
        if one["checker"] or not (one["verdict"] or "equal").startswith("equal"):
            failures[name] = one["checker"] or one["verdict"]
        if "readers" in one:
            tried += 1
            unread |= {name: one["readers"]} if one["readers"] else {}
        own, foreign = one["nodes"]["ours"], one["foreign"]
        others = [one["nodes"][peer] for peer in PEERS if isinstance(one["nodes"][peer], int) and peer not in foreign]
        if not others:
            continue
        best = min(others)
        ratios.append(max(own, 1) / max(best, 1))
        if own > best:
            more[name] = {"ours": own, "best": best}
    return {
        "models": len(rows),
        "of models in the folders": known,
        "compared": len(ratios),
        "at most as many nodes": len(ratios) - len(more),
        "share": (len(ratios) - len(more)) / max(len(ratios), 1),
        "geometric mean of nodes to the better of the two": statistics.geometric_mean(ratios) if ratios else None,
        "results of peers with com.microsoft": {
            peer: sum(peer in one["foreign"] for one in rows.values()) for peer in PEERS
        },
        "failures of peers": {
            peer: sum(isinstance(one["nodes"].get(peer), str) for one in rows.values()) for peer in PEERS
        },
        "verified": verified,
        "failures": failures,
        "tried with other readers": tried,
        "not read": unread,
        "more nodes": more,
    }


def main(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders with models besides the golden ones.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Words, one of which a model's name contains; these are measured anew.")
    ] = None,
    every: Annotated[int, typer.Option(help="Other readers are tried on each of so many models.")] = 8,
    verify_every: Annotated[int, typer.Option(help="Results are verified of each of so many models.")] = 1,
    jobs: Annotated[int, typer.Option(help="How many models are measured at once.")] = 1,
    write: Annotated[bool, typer.Option(help="Whether to store the figures.")] = False,
) -> None:
    """Print the figures; models that were measured by a run before, which was stopped, are not measured again."""
    isolated.preload(["__main__", *peers.preloaded(["ortfuse", *PEERS])])
    results = Results("targets.portable")
    paths = [path for folder in [*(folders or []), GOLDEN] for path in sorted(folder.glob("*.onnx"))]
    random.Random(0).shuffle(paths)
    known = {} if model else results.raw_rows()
    asked = [
        (path, place % every == 0, place % verify_every == 0)
        for place, path in enumerate(paths)
        if path.stem not in known and (not model or any(word in path.name for word in model))
    ]
    with ThreadPoolExecutor(jobs) as pool:
        for name, made in pool.map(lambda one: _measured(*one), asked):
            results.add({name: made})
            said = made.get("error") or made["checker"] or made.get("readers") or ""
            print(name, made["nodes"], said, flush=True)
    found = figures(
        {path.stem: one for path in paths if (one := results.raw_rows().get(path.stem)) is not None}, len(paths)
    )
    print(json.dumps(found, indent=1))
    if write:
        results.store(COMMAND, found, packages=(*peers.PACKAGES, "openvino"))
    raise typer.Exit(1 if found["failures"] or found["not read"] else 0)


if __name__ == "__main__":
    typer.run(main)
