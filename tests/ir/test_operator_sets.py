"""What is known of operators stands in their registry: lists of operator names elsewhere are few, and get fewer."""

from __future__ import annotations

import ast
from pathlib import Path

import onnx.defs

ROOT = Path(__file__).parents[2] / "ortfuse"
HOMES = ("ir/traits.py", "ir/operators.py", "analysis/operators/", "naming/")
"""The registry, and the families of operators that fill it."""

FEW = 5
"""A module may name so many operators in one list: a special case is no table."""

LEFT = {
    "analysis/ranges/queries.py": 11,
    "analysis/holds_one_size.py": 7,
    "pipeline/model_features.py": 13,
    "profiling/kernel_limits.py": 8,
    "quantization/intermediate_qdq.py": 9,
    "quantization/unquantized_weights.py": 11,
    "rewrite/pattern/ac_matching.py": 7,
    "runtime/float64/widen.py": 6,
    "runtime/inputs/broadcast_sizes.py": 9,
    "runtime/inputs/input_roles.py": 7,
    "runtime/session_settings/denormals.py": 11,
    "targets/cpu/blocked_layout.py": 7,
    "targets/cpu/constraints.py": 7,
    "transforms/declare_image_sizes.py": 7,
    "transforms/fold_linear/fold_channel_affine.py": 9,
    "transforms/fusion/half_attention_in_float32.py": 15,
    "transforms/layout/image_ops.py": 6,
    "transforms/layout/transpose_tie_break.py": 7,
    "transforms/recurrence/cell.py": 7,
    "transforms/recurrence/missed_loop_remarks.py": 7,
    "verification/rule_tests/near_miss_graphs.py": 17,
}
"""The longest list of operator names of modules that still have tables of their own. Numbers only fall."""

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


def tables() -> dict[str, int]:
    files = {file.relative_to(ROOT).as_posix(): file for file in ROOT.rglob("*.py")}
    return {
        name: count for name, file in files.items() if not name.startswith(HOMES) and (count := longest(file)) > FEW
    }


def test_no_module_outside_the_registry_lists_more_operators_than_it_did() -> None:
    assert {name: count for name, count in tables().items() if count > LEFT.get(name, FEW)} == {}


def test_modules_whose_tables_are_gone_leave_the_list() -> None:
    assert sorted(LEFT.keys() - tables().keys()) == []
