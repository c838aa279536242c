"""Writes the JSON Schemas of what the commands write with `--json`, into `ortfuse/schemas/`, which is shipped.

    python docs/schemas.py            # write them
    python docs/schemas.py --check    # only say which are not what the code says; then the exit code is 1

The fields of a dataclass are those of its declaration, described as in its docstring; the tables below say how `to_dict` puts
them together. A number may always be null, where it was not measured or is not finite.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from ortfuse.api.result import Timings
from ortfuse.cli.json_output import COMMANDS, name_of
from ortfuse.inspection.inspection import Detour, FoundBlock, Import, Port, Region, Weights
from ortfuse.pipeline.descriptions import ListInfo, OptionInfo, PassInfo, RuleInfo
from ortfuse.pipeline.report import Counts, PassReport, Remark
from ortfuse.profiling import Creation, Denormals, Group, Kernel, Timing
from ortfuse.profiling.kernels import VIEWS
from ortfuse.profiling.result import Bottleneck
from ortfuse.quantization.half.convert import Conversion
from ortfuse.quantization.outcome import Point as PrecisionPoint
from ortfuse.quantization.outcome import SiteReport
from ortfuse.quantization.phases import Phase
from ortfuse.rewrite import Event, NearMiss
from ortfuse.rewrite.log import RuleStatistics
from ortfuse.runtime.bench import Latency
from ortfuse.runtime.bench.machine_peaks import Peaks
from ortfuse.runtime.bench.session_timing import SessionLatency
from ortfuse.runtime.comparison import Difference
from ortfuse.runtime.inputs.exploration import Exercise
from ortfuse.runtime.session_settings import Setting
from ortfuse.sweeping import Row
from ortfuse.sweeping.row import Outcome
from ortfuse.transforms import Grown
from ortfuse.tuning.outcome import Point
from ortfuse.tuning.rule_costs.measure import Calibration
from ortfuse.tuning.rule_costs.session_settings import Effect
from ortfuse.verification.bisection.judge_edit import Culprit
from ortfuse.verification.diff import AttributeDifference, ConstantDifference, Only, OperandDifference, TensorDifference
from ortfuse.verification.explanation.explain import Fused, Missed
from ortfuse.verification.explanation.forced_outcomes import ForcedOutcome
from ortfuse.verification.explanation.lost_sites import Taken
from ortfuse.verification.rule_tests.rule_test import RuleTestReport
from ortfuse.verification.runtime_changes import RuntimeChange
from ortfuse.verification.translation_validation import SiteCheck

Schema = dict[str, Any]
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "ortfuse" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},
    type(None): {"type": "null"},
    object: {},
    Any: {},
}


def schema(kind: Any) -> Schema:
    """The schema of a type, of a dataclass with all its fields, or of a table of names with either."""
    if isinstance(kind, dict):
        return _object({name: schema(one) for name, one in kind.items()})
    if isinstance(kind, list):
        return {"type": "array", "items": schema(kind[0])}
    if kind in PLAIN:
        return dict(PLAIN[kind])
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema(part) for part in parts]}
    if origin is tuple and ... not in parts:
        return {"type": "array", "prefixItems": [schema(part) for part in parts]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema(parts[1])}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": schema(parts[0])}
    if is_dataclass(kind):
        return record(kind)
    raise TypeError(f"no schema of {kind}")


def record(kind: Any, without: Sequence[str] = (), **more: Any) -> Schema:
    """The schema of a dataclass, without some fields and with others, or with other types for them."""
    hints = typing.get_type_hints(kind)
    said = _described(inspect.getdoc(kind) or "")
    properties = {
        field.name: {**schema(hints[field.name]), **said.get(field.name, {})}
        for field in fields(kind)
        if field.name not in (*without, *more)
    }
    return _object({**properties, **{name: {**schema_or(one), **said.get(name, {})} for name, one in more.items()}})


def schema_or(kind: Any) -> Schema:
    """What is a schema already, or the schema of a type."""
    return kind if isinstance(kind, dict) and ("type" in kind or "anyOf" in kind) else schema(kind)


def maybe(kind: Any) -> Schema:
    """Something, or null."""
    return {"anyOf": [schema_or(kind), {"type": "null"}]}


def several(kind: Any) -> Schema:
    """A list."""
    return {"type": "array", "items": schema_or(kind)}


def _object(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "required": list(properties), "properties": dict(properties)}


def _described(text: str) -> dict[str, Schema]:
    """What a docstring says of each attribute."""
    part = text.partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", part, re.MULTILINE)
    return {name: {"description": " ".join(words.split())} for name, words in found}


def tables() -> dict[str, Schema]:
    """The schema of each command's data."""
    difference = record(Difference)
    verdict = _object(
        {
            "ok": schema(bool), "state": schema(str), "summary": schema(str), "notes": schema(list[str]),
            "exercise": maybe(record(Exercise)), "runtime": maybe(record(RuntimeChange)),
            "trials": several(
                _object({
                    "inputs": schema(str), "runtime_optimisations": schema(bool), "ok": schema(bool), "refusal": schema(str),
                    "outputs": several(difference),
                })
            ),
        }
    )  # fmt: skip
    judged = {"error_before": float, "error_after": float}
    refusal = _object(
        {
            "code": schema(str), "subject": schema(dict[str, str]), "found": schema(str), "needed": schema(str),
            "reason": schema(str), "remedy": schema(str),
        }
    )  # fmt: skip
    latency = several(record(Latency))
    settings = several(record(Setting, value=object))
    missed = record(Missed, refusal=refusal)
    explanation = _object(
        {
            "fused": several(Fused),
            "missed": several(missed),
            "absent": schema(dict[str, str]),
            "taken": several(Taken),
            "notes": schema(list[str]),
        }
    )
    proof = record(RuleTestReport, without=("counterexamples",), proved=bool)
    slowdown = schema(
        {
            "speedup": float, "speedup_bounds": list[float] | None, "pass": str, "rule": str, "speedup_without": float,
            "offered": str, "taken": bool,
        }
    )  # fmt: skip
    choice = schema(
        {
            "rule": str, "makes": str, "taken": bool, "speedup": float, "sizes": str | None, "source": str,
            "sites": list[str],
        }
    )  # fmt: skip
    report = {
        "pipeline": schema(str), "chosen": schema(str), "seconds": schema(float), "analysis_seconds": schema(float),
        "before": record(Counts), "after": record(Counts), "families": schema(dict[str, int]), "improved": schema(dict[str, int]),
        "passes": several(_nested(record(PassReport, without=("parts",)))), "rules": schema(dict[str, RuleStatistics]),
        "lost": schema(dict[str, int]),
        "events": several(Event), "misses": several(record(NearMiss, ("root",), refusal=refusal, nodes=list[str])),
        "remarks": several(Remark), "choices": several(choice), "folded": several(Grown),
        "held_back": several(Grown), "notes": schema(list[str]), "failures": schema(list[str]),
    }  # fmt: skip
    result = {
        **report, "ok": schema(bool), "options": schema(dict[str, object]), "verdict": maybe(verdict), "blame": schema(str),
        "sites": maybe(several(record(SiteCheck, verdict=maybe(verdict), **judged))), "explanation": maybe(explanation),
        "pins": several(ForcedOutcome), "latency_sizes": schema(str), "latency": latency, "left_alone": schema(str),
        "slowdown": maybe(slowdown), "session": settings, "written": schema(str | None),
        "session_file": schema(str | None), "file_bytes": schema({"before": int | None, "after": int | None}),
        "timings": record(Timings),
    }  # fmt: skip
    tensor = record(TensorDifference, difference=difference)
    region = record(Region, intensity=float)
    point = record(Point, choice=dict[str, object])
    culprit = maybe(record(Culprit, without=("verdict",), **judged))
    site = schema({"rule": str, "site": str})
    refused = _object({"model": schema(str), "ok": {"enum": [False]}, "reason": schema(str)})
    return {
        "optimize": _object({"model": schema(str), **result}),
        "substitute": {
            "anyOf": [
                _object({
                    "model": schema(str), "rule": schema(str), "formula": schema(str), "substituted": schema(int),
                    "proof": maybe(proof), **result, "explanation": explanation,
                }),
                _object({"model": schema(str), "ok": {"enum": [False]}, "proof": proof}),
                _object({"model": schema(str), **result}),
            ]
        },
        "verify": {**verdict, "properties": {**verdict["properties"], "error": schema(float), "bound": schema(float),
                                             "metric": schema(str)}},
        "diff": _object({
            "first": schema(str), "second": schema(str), "same": schema(bool), "same_nodes": schema(bool),
            "nodes": schema(list[int]), "only_first": several(Only), "only_second": several(Only),
            "attributes": several(AttributeDifference), "constants": several(ConstantDifference),
            "operands": several(OperandDifference), "interface": schema(list[str]), "renamed": schema(int),
            "tensors": maybe(_object({
                "compared": schema(int), "alone": schema(int), "sets": schema(int), "first": maybe(tensor),
                "differing": several(tensor),
            })),
        }),
        "bench": _object({"inputs": schema(str), "latency": latency, "sessions": several(SessionLatency),
                          "notes": schema(list[str])}),
        "sweep": _object({"ok": schema(bool), "kept": schema(int), "rows": several(record(Row, outcome=Outcome))}),
        "explain": _object({"model": schema(str), **explanation["properties"]}),
        "bisect": {
            "anyOf": [
                _object({
                    "model": schema(str), "moved": schema(bool), "verdict": verdict, "passes": schema(list[str]),
                    "rules": schema(list[str]), "sites": several(site), "culprit": culprit, "before": maybe(difference),
                    "after": maybe(difference), "runs": schema(int),
                }),
                _object({
                    "model": schema(str), "moved": schema(bool), "verdict": verdict, "optimisers": schema(list[str]),
                    "candidates": schema(list[str]), "runs": schema(int),
                    "site": maybe(_object({
                        "value": schema(str), "operator": schema(str), "before": schema(str), "nature": schema(str),
                        "difference": difference,
                    })),
                }),
            ]
        },
        "inspect": _object({
            "model": schema(str), "imports": several(Import), "inputs": several(Port), "outputs": several(Port),
            "weights": several(Weights), "detours": several(Detour), "blocks": several(FoundBlock),
            "ir_version": schema(int), "parameters": schema(int), "operators": schema(dict[str, int]),
            "kinds": schema(dict[str, int]), "regions": several(region), "by_operator": several(region), "total": region,
            "macs": schema(str), "sizes": schema(dict[str, int]), "peaks": maybe(record(Peaks, ridge=float)),
            "notes": schema(list[str]),
        }),
        "profile": _object({
            "model": schema(str), "inputs": schema(str), "threads": schema(int), "timing": record(Timing),
            "run_seconds": schema(float), "runs": schema(int), "kernel_seconds": schema(float),
            "between_seconds": schema(float), "scale": schema(float), "reached": schema(float),
            "denormals": maybe(record(Denormals)),
            "peaks": maybe(record(Peaks, ridge=float)), "by": schema(dict.fromkeys(VIEWS, list[Group])),
            "kernels": several(record(Kernel, reached=float)), "creation": record(Creation),
            "bottlenecks": several(Bottleneck), "notes": schema(list[str]),
        }),
        "calibrate": {
            "anyOf": [
                record(Calibration),
                _object({
                    "model": schema(str), "inputs": schema(str), "threads": schema(int), "effects": several(Effect),
                    "together": maybe(record(Effect)), "session": settings, "file": schema(str), "problem": schema(str),
                }),
            ]
        },
        "passes": _object({
            "passes": several(record(PassInfo, options=list[OptionInfo])), "rules": several(RuleInfo), "lists": several(ListInfo),
        }),
        "test-rules": _object({"rules": several(proof)}),
        "convert": {
            "anyOf": [
                _object({
                    "model": schema(str),
                    **record(Conversion, without=("model",), errors=dict[str, float], ordered=dict[str, float])["properties"],
                    "warnings": {**schema(list[str]), "description": "What is large of the errors, in words."},
                }),
                refused,
            ]
        },
        "quantize": {
            "anyOf": [
                _object({
                    "model": schema(str), "metric": schema(str), "bound": schema(float),
                    "goal": {"enum": ["latency", "size", "memory"]}, "inputs": schema(str), "error": schema(float),
                    "held_out_error": schema(float), "speedup": schema(float), "reason": schema(str),
                    "notes": schema(list[str]), "taken": record(PrecisionPoint), "latency": latency,
                    "float_size": schema(int), "memory": schema(list[int] | None), "sites": several(SiteReport),
                    "curve": several(PrecisionPoint), "phases": several(Phase), "written": schema(str | None),
                    "left": schema(dict[str, str]), "ok": schema(bool),
                }),
                _object({
                    "model": schema(str), "choice": schema(dict[str, str]), "left": schema(list[str]),
                    "float_size": schema(int), "size": schema(int), "written": schema(str | None),
                    "kept": schema(dict[str, str]), "modules": schema(dict[str, str]),
                    "ok": schema(bool), "notes": schema(list[str]),
                }),
                refused,
            ]
        },
        "tune": {
            "anyOf": [
                _object({
                    "model": schema(str), "best": point, "baseline": point, "finalists": several(point),
                    "confirmed": several(point), "trials": several(point), "seconds": schema(float), "notes": schema(list[str]),
                    "options": schema(dict[str, object]), "session": settings, "written": schema(list[str]),
                }),
                refused,
            ]
        },
    }  # fmt: skip


def _nested(report: Schema) -> Schema:
    """The report of a pass, whose parts are reports like it."""
    inner = {**report, "properties": {**report["properties"], "parts": {"type": "array"}}}
    return {**report, "properties": {**report["properties"], "parts": several(inner)}}


def documents() -> dict[Path, str]:
    """The files."""
    found = {}
    for command, content in tables().items():
        head = {
            "$schema": DRAFT,
            "$id": name_of(command),
            "title": f"What `ortfuse {command} --json FILE` writes",
            "type": "object",
        }
        envelope = _object({"schema": {"enum": [name_of(command)]}, "versions": schema(dict[str, str])})
        whole = {**head, "allOf": [envelope, content]}
        found[FOLDER / f"{command}.schema.json"] = json.dumps(whole, indent=1) + "\n"
    assert {path.name.partition(".")[0] for path in found} == set(COMMANDS)
    return found


def main(arguments: Sequence[str]) -> int:
    """Write, or compare."""
    FOLDER.mkdir(exist_ok=True)
    old = [path for path, text in documents().items() if not path.is_file() or path.read_text() != text]
    for path in old:
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)}: is not what the code says; run python docs/schemas.py")
        else:
            path.write_text(documents()[path])
    return 1 if old and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
