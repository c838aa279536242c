"""Reasons for missed sites: the nearest match of each rule, and the operators around the calls that are left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

RULES = {"layer_norm": "layernorm.", "rms_norm": "rmsnorm.", "group_norm": "groupnorm."}
"""Beginnings of the names of a family's rules, unless that is the family's name."""
TRACES = {"attention": "Softmax", "gelu": "Erf", "swish": "Sigmoid", "group_norm": "InstanceNormalization"}
"""Operators that are left of a family's call that is not fused."""
_PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum", "FusedMatMul", "Conv"})
_FURTHEST = 12


def nearest(source: Path, missing: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
    """Find for each family with missing sites the nearest matches of the rules, and the reason that stopped each.

    Of each rule as many near misses count as sites are missing, the furthest first, if they are still in the result. After
    them come the operators around the calls that are left.
    """
    from ortfuse import optimize
    from ortfuse.rewrite import NearMiss

    result = optimize(source, explain=True)
    left = {value.name for node in result.model.graph.all_nodes() for value in node.outputs}
    reasons: dict[str, list[dict[str, Any]]] = {}
    for family, count in missing.items():
        near: dict[str, list[NearMiss]] = {}
        for miss in result.report.misses:
            if miss.rule.startswith(RULES.get(family, f"{family}.")) and miss.site in left and miss.matched > 1:
                near.setdefault(miss.rule, []).append(miss)
        groups: dict[tuple[str, int, str], list[NearMiss]] = {}
        for misses in near.values():
            for miss in sorted(misses, key=lambda miss: -miss.matched)[:count]:
                groups.setdefault((miss.rule, miss.matched, _anonymous(miss.refusal.reason)), []).append(miss)
        reasons[family] = [
            {
                "rule": rule,
                "matched": matched,
                "sites": len(same),
                "site": same[0].site,
                "reason": same[0].refusal.reason,
            }
            for (rule, matched, _), same in sorted(groups.items(), key=lambda item: (-item[0][1], -len(item[1])))
        ]
        if family in TRACES:
            reasons[family] += _left(result.model, TRACES[family])
    return reasons


def _anonymous(reason: str) -> str:
    """A reason without the names in it: the same reason in another layer is the same."""
    return "'".join(reason.split("'")[::2])


def _left(model: ir.Model, kind: str) -> list[dict[str, Any]]:
    """Return the operators around those of a kind, between the products before and after."""
    found = [node for node in model.graph.all_nodes() if node.op_type == kind]
    if not found:
        reason = f"no {kind} is left: equal calls have become one, or none reaches an output"
        return [{"rule": "", "matched": 0, "sites": 0, "site": "", "reason": reason}]
    paths: dict[str, list[ir.Node]] = {}
    for node in found:
        above, below = _path(node, _producers), _path(node, _consumers)
        paths.setdefault(" > ".join((*reversed(above), kind, *below)), []).append(node)
    return [
        {
            "rule": "",
            "matched": 0,
            "sites": len(nodes),
            "site": nodes[0].outputs[0].name or "",
            "reason": f"left: {path}",
        }
        for path, nodes in paths.items()
    ]


def _path(start: ir.Node, step: Callable[[ir.Node], Iterable[ir.Node]]) -> list[str]:
    """The operators on the shortest way from a node to a product, the product included; what is there if none is."""
    queue: deque[tuple[ir.Node, list[str]]] = deque([(start, [])])
    seen = {start}
    longest: list[str] = []
    while queue:
        node, path = queue.popleft()
        longest = max(longest, path, key=len)
        if path and node.op_type in _PRODUCTS:
            return path
        for other in step(node):
            if other not in seen and len(path) < _FURTHEST:
                seen.add(other)
                queue.append((other, [*path, other.op_type]))
    return longest


def _producers(node: ir.Node) -> list[ir.Node]:
    return [maker for value in node.inputs if value is not None and (maker := value.producer()) is not None]


def _consumers(node: ir.Node) -> list[ir.Node]:
    return [use.node for value in node.outputs for use in value.uses()]
