"""Facts about operators stand in their registry: no other module lists operator names."""

from __future__ import annotations

import ast
from pathlib import Path

import onnx.defs

ROOT = Path(__file__).parents[2] / "ortfuse"
HOMES = ("ir/traits.py", "ir/operator_registry.py", "analysis/operators/", "naming/", "targets/")
"""The registry, and the families of operators that fill it; the folders of targets state facts about kernels."""

FEW = 5
"""A module may name so many operators in one list: a special case is no table."""

NOT_FACTS = {
    "pipeline/model_features.py": "signs by which a pass list is chosen: habits of exporters",
    "quantization/half/clamp_attention_biases.py": "operators that the pass follows from a bias to the numbers that hide keys",
    "quantization/insert_intermediate_qdq.py": "operators for which the runtime has integer kernels between DequantizeLinear and QuantizeLinear",
    "transforms/index_maps/simplify_data_movement.py": "operators in which the pass writes chains, and that are part of one",
    "verification/rule_tests/near_miss_graphs.py": "a choice of test data: the operator that a near miss puts in place of another",
}
"""Modules with longer lists that are no facts about operators, each with the reason."""

OPERATORS = {schema.name for schema in onnx.defs.get_all_schemas()}


def longest(file: Path) -> int:
    """The most operator names in one set, list, tuple or keys of a dictionary."""
    counts = [0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Dict):
            elements = [key for key in node.keys if key is not None]
        else:
            elements = node.elts if isinstance(node, ast.Set | ast.List | ast.Tuple) else []
        counts.append(sum(isinstance(one, ast.Constant) and one.value in OPERATORS for one in elements))
    return max(counts)


def test_no_module_outside_the_registry_lists_operators() -> None:
    files = {file.relative_to(ROOT).as_posix(): file for file in ROOT.rglob("*.py")}
    tables = {name for name, file in files.items() if not name.startswith(HOMES) and longest(file) > FEW}
    assert tables == NOT_FACTS.keys()
