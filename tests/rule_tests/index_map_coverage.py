"""Which rules of data movement index maps make needless: a table, rule by rule.

    python tests/rule_tests/index_map_coverage.py > tests/rule_tests/index_map_coverage.md

The instances of each rule are rewritten by the rule, and by the pass `simplify_data_movement` alone. A rule is covered if the pass
leaves operators that cost no more, in views (1) and copies (3), on all of its instances. Rows of deleted rules are kept: their
instances are in `tests/transforms/former_data_movement.json`.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.rewrite import Rule
from ortfuse.targets import installed
from ortfuse.transforms import DeadCodeElimination, Pass, SimplifyDataMovement
from ortfuse.transforms.context import Context
from ortfuse.verification.rule_tests import run_rule_test
from ortfuse.verification.rule_tests.rule_trial import Tried

FOLDERS = ("canonicalize", "data_movement")
MOST_INSTANCES = 24
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Size"})


def rules() -> Iterator[tuple[str, Rule]]:
    """Yield all rules of data movement with the names of their files."""
    for folder in FOLDERS:
        for file in sorted((Path(__file__).parents[2] / "patterns" / folder).glob("[a-z]*.py")):
            module = importlib.import_module(f"ortfuse.patterns.{folder}.{file.stem}")
            yield from ((f"{folder}/{file.stem}", rule) for rule in module.RULES)


def cost(model: ir.Model, *passes: Pass) -> int:
    """Return what the operators of a model cost after some passes."""
    copy = ir.from_proto(ir.to_proto(model))
    context = Context(copy, Facts(copy), installed())
    for one in (*passes, DeadCodeElimination()):
        one.run(context)
    return sum(1 if node.op_type in _VIEWS else 3 for node in copy.graph if node.op_type != "Constant")


def compared(rule: Rule) -> Counter[str]:
    """Return on how many instances the pass does as well as a rule, and on how many it only does not change anything."""
    found: Counter[str] = Counter()

    def witness(tried: Tried) -> bool:
        if tried.is_near or not tried.rewritten.hits:
            return True
        before, by_rule = cost(tried.instance.model), cost(tried.rewritten.model)
        by_pass = cost(tried.instance.model, SimplifyDataMovement(), SimplifyDataMovement())
        found["instances"] += 1
        found["as well"] += by_pass <= by_rule
        found["unchanged"] += by_pass == before == by_rule
        return found["instances"] < MOST_INSTANCES

    run_rule_test(rule, near_misses=False, witness=witness, judged=False, pairs=6)
    return found


def main() -> None:
    """Print the table."""
    print("| file | rule | instances | as cheap by index maps | verdict |\n|---|---|---|---|---|")
    for file, rule in rules():
        found = compared(rule)
        if found["unchanged"] == found["instances"]:
            verdict = "no cheaper by the rule either"
        else:
            verdict = "covered" if found["as well"] == found["instances"] else "not covered"
        print(f"| {file} | {rule.name} | {found['instances']} | {found['as well']} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
