"""Single operators read by another opset than they are written for, as the runtime reads functions.

    python -m benchmarks.trust.readings --most 30 --write     # about so many cells of each operator; writes the summary
    python -m benchmarks.trust.readings Softmax RoiAlign      # these operators

The models are the cells of the conformance grid (`benchmarks.trust.operators`) at every opset at which their operator changed.
Only the number of the opset is set to each later one; nothing is converted. Both readings are run and compared.
`ortfuse.ir.schemas.keeps_meaning` says of each pair whether both readings agree; it is wrong if it says so and they differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import onnx

from benchmarks.results import Results
from benchmarks.trust.grid.cells import Cell, about
from benchmarks.trust.grid.seeds import seeds, versions
from benchmarks.trust.raising import all_are, equal, saturates_strangely
from benchmarks.trust.standard import same
from ortfuse.errors import VerificationError
from ortfuse.ir.schemas import keeps_meaning
from ortfuse.runtime.session import Session

SAME, ROUNDED, DIFFERS, REFUSED = "same", "rounded otherwise", "differs", "refused"

Counts = dict[tuple[int, int], Counter[str]]


def readings(operator: str, most: int) -> Counts:
    """Count the outcomes of an operator's cells, by the opset of its definition and the one by which they are read."""
    found: Counts = defaultdict(Counter)
    changed = versions("", operator)
    for cell in about(most, 0, operator):
        (written,) = [one.version for one in cell.model.opset_import if not one.domain]
        expected = None if saturates_strangely(cell) else _run(cell, written)
        since = max((version for version in changed if version <= written), default=written)
        for opset in [version for version in changed if version > written] if expected is not None else ():
            found[since, opset][_outcome(expected, _run(cell, opset))] += 1
    return found


def _run(cell: Cell, opset: int) -> list[dict[str, Any]] | None:
    """The outputs of a cell read by an opset; `None` if the runtime refuses it."""
    model = onnx.ModelProto()
    model.CopyFrom(cell.model)
    for one in model.opset_import:
        one.version = one.version if one.domain else opset
    try:
        return [Session(model.SerializeToString(), optimise=False, lean=True).run(cell.runs[0][0])]
    except VerificationError:
        return None


def _outcome(expected: Any, found: Any) -> str:
    if found is None:
        return REFUSED
    if all_are(equal, expected, found):
        return SAME
    return ROUNDED if all_are(same, expected, found) else DIFFERS


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the cells of some operators, or of all, by later opsets; the exit code is 1 if a reading is wrong."""
    parser = argparse.ArgumentParser(description="Single operators read by another opset than they are written for.")
    parser.add_argument("operators", nargs="*", help="names of operators; all of ai.onnx by default")
    parser.add_argument("--most", type=int, default=30, help="about so many cells of each operator")
    parser.add_argument("--write", action="store_true", help="write the summary")
    given = parser.parse_args(arguments)
    if given.write and given.operators:
        parser.error("the summary is about all operators; leave out --write or the names")
    warnings.simplefilter("ignore")
    started, counts = time.monotonic(), Counter[str]()
    changed: dict[str, dict[str, int]] = {}
    wrong: list[str] = []
    for operator in given.operators or sorted(name for name, found in seeds().items() if not found[0].domain):
        for (since, opset), outcomes in sorted(readings(operator, given.most).items()):
            counts.update(outcomes)
            label = f"{operator} {since} read as {opset}"
            if outcomes[DIFFERS] or outcomes[ROUNDED]:
                changed[label] = dict(outcomes)
            if outcomes[DIFFERS] and keeps_meaning(operator, since, opset):
                wrong.append(label)
                print(f"{label}: {dict(outcomes)}", flush=True)
    result = {
        "read": dict(sorted(counts.items())),
        "seconds": round(time.monotonic() - started),
        "other readings": changed,
        "wrong": wrong,
    }
    if given.write:
        Results("trust.readings").store(" ".join(["python -m benchmarks.trust.readings", *sys.argv[1:]]), result)
    print(json.dumps(result["read"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
