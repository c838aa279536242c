"""How far `compose_linear_maps` brings the instances of the rules that it replaced: a table, rule by rule.

    python -m tests.rule_tests.linear_map_coverage > tests/rule_tests/linear_map_coverage.md

A rule is covered if the pass leaves operators that cost no more than what the rule left, on all of its instances. A
BatchNormalization costs 2.5, an Identity nothing, and every other operator 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1]
sys.path[:0] = [str(FOLDER / "helpers"), str(FOLDER / "transforms")]

from former_instances import cost, instance  # noqa: E402
from rewriting import composed  # noqa: E402


def main() -> None:
    """Print the table."""
    former = json.loads((FOLDER / "transforms" / "former_linear_maps.json").read_text())
    print("| former rule | instances | as cheap | cheaper | verdict |\n|---|---|---|---|---|")
    for rule, instances in sorted(former.items()):
        costs = [(cost(composed(instance(text, constants))), left) for text, constants, left in instances]
        good, better = sum(one <= left for one, left in costs), sum(one < left for one, left in costs)
        verdict = "covered" if good == len(costs) else "not covered"
        print(f"| {rule} | {len(costs)} | {good} | {better} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
