"""Writes the JSON Schemas of what the commands write with `--json`, into `ortfuse/schemas/`, which is shipped.

    python docs/schemas.py            # write them
    python docs/schemas.py --check    # only say which are not what the code says; then the exit code is 1

They follow from the declarations of the dataclasses (`ortfuse.serialization`); here is only which ones a command writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ortfuse.api.generator import GeneratorResult
from ortfuse.api.quantize import Lowered, Quantized
from ortfuse.api.result import Result
from ortfuse.cli.json_output import name_of
from ortfuse.cli.parsing import COMMANDS
from ortfuse.generation.measure import GenerationLatencies
from ortfuse.inspection import Inspection
from ortfuse.inspection.describe_targets import DescribedTargets
from ortfuse.interop import Substitution
from ortfuse.pipeline.descriptions import Described
from ortfuse.profiling import Profile
from ortfuse.quantization.error_bound_metadata import BoundVerdict
from ortfuse.quantization.half.convert_to_half import Conversion
from ortfuse.runtime.bench import Latencies
from ortfuse.serialization.json_schema import Schema, closed, schema
from ortfuse.sweeping import Sweep
from ortfuse.tuning.rule_costs import Calibration, MeasuredSettings
from ortfuse.tuning.tune import Tuned
from ortfuse.verification import Verdict
from ortfuse.verification.bisection.bisect_pipeline import Bisection
from ortfuse.verification.bisection.bisect_runtime_optimizers import RuntimeBisection
from ortfuse.verification.diff import ModelDifference
from ortfuse.verification.explanation import Explanation
from ortfuse.verification.rule_tests import RuleTestReport

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "ortfuse" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"

Part = tuple[dict[str, Any], Any]
"""Names that the command adds, with their types, and the dataclass that it writes; `None` if there is none."""

MODEL: dict[str, Any] = {"model": str}
NO = Literal[False]
REFUSED: Part = ({**MODEL, "ok": NO, "reason": str}, None)
"""Nothing can keep what was asked of the result."""

WRITTEN: dict[str, Sequence[Part]] = {
    "optimize": [(MODEL, Result)],
    "substitute": [(MODEL, Substitution), ({**MODEL, "ok": NO, "rule_test": RuleTestReport}, None), (MODEL, Result)],
    "quantize": [(MODEL, Quantized), (MODEL, Lowered), REFUSED],
    "convert": [(MODEL, Conversion), REFUSED],
    "tune": [(MODEL, Tuned), REFUSED],
    "sweep": [({}, Sweep)],
    "verify": [({}, Verdict), ({}, BoundVerdict)],
    "diff": [({"first": str, "second": str}, ModelDifference)],
    "bisect": [(MODEL, Bisection), (MODEL, RuntimeBisection)],
    "explain": [(MODEL, Explanation)],
    "inspect": [(MODEL, Inspection)],
    "bench": [({}, Latencies), ({}, GenerationLatencies)],
    "profile": [(MODEL, Profile)],
    "calibrate": [({}, Calibration), ({}, MeasuredSettings)],
    "passes": [({}, Described)],
    "targets": [({}, DescribedTargets)],
    "generator": [(MODEL, GeneratorResult)],
    "test-rules": [({"rules": list[RuleTestReport]}, None)],
}
"""The forms of the data of each command, of which it writes one."""


def content(part: Part) -> Schema:
    """The schema of one form of a command's data."""
    names, kind = part
    of_kind = schema(kind) if kind is not None else closed({})
    optional = of_kind["properties"].keys() - of_kind["required"]
    return closed({**schema(names)["properties"], **of_kind["properties"]}, sorted(optional))


def tables() -> dict[str, Schema]:
    """The schema of each command's data."""
    found = {command: [content(part) for part in parts] for command, parts in WRITTEN.items()}
    return {command: forms[0] if len(forms) == 1 else {"anyOf": forms} for command, forms in found.items()}


def documents() -> dict[Path, str]:
    """The files."""
    found = {}
    for command, forms in tables().items():
        head = {
            "$schema": DRAFT,
            "$id": name_of(command),
            "title": f"What `ortfuse {command} --json FILE` writes",
            "type": "object",
        }
        envelope = closed({"schema": {"enum": [name_of(command)]}, "versions": schema(dict[str, str])})
        whole = {**head, "allOf": [envelope, forms]}
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
