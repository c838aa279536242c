"""Which former rules are instances of hoisting and sinking data movement: a table, rule by rule.

    python tests/rule_tests/hoisting_coverage.py > tests/rule_tests/hoisting_coverage.md

The instances of each former rule are rewritten by the rules that took its place. It is covered if no instance keeps more operators
than the former rule left.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections import Counter
from pathlib import Path

import onnx.parser
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.editor import Editor
from ortfuse.naming import RenamedWarning, name_today
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Rewriter, Rule
from ortfuse.targets import Target

FILES = (
    "canonicalize.sink_expand",
    "canonicalize.sink_reshape",
    "canonicalize.hoist_reshape",
    "data_movement.hoist_reshape_after_fusions",
    "algebra.canonical_identities",
)
FORMER = Path(__file__).parents[1] / "patterns" / "former_movement.json"


def main() -> None:
    """Print the table."""
    rules: list[Rule] = [rule for file in FILES for rule in importlib.import_module(f"ortfuse.patterns.{file}").RULES]
    known = {rule.name for rule in load_catalogue([]).rules()}
    print("| former rule | rule today | instances | as few operators | verdict |\n|---|---|---|---|---|")
    for name, instances in json.loads(FORMER.read_text()).items():
        found: Counter[bool] = Counter()
        for text, left in instances:
            model = ir.from_proto(onnx.parser.parse_model(text))
            Rewriter(Editor(model, Facts(model)), Target()).run(rules)
            operators = [node.op_type for node in model.graph if node.op_type not in ("Constant", "Identity")]
            found[len(operators) <= len(left.split())] += 1
        with warnings.catch_warnings(action="ignore", category=RenamedWarning):
            today = name_today(name, ("rules",), known)
        verdict = "not covered" if found[False] else "covered"
        print(f"| {name} | {today} | {found.total()} | {found[True]} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
