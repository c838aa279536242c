"""Find every match of a pattern in a model."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.walk import scopes
from ortfuse.rewrite.pattern.match_operators import Match, Matcher


def matches(model: ir.Model, matcher: Matcher, facts: Facts) -> Iterator[Match]:
    """Every match in any graph of the model, in the order of the nodes; they may overlap.

    The same roots in another order are no further match.
    """
    seen: set[frozenset[ir.Value]] = set()
    for scope in scopes(model):
        for node in scope.graph:
            if node.op_type not in matcher.heads:
                continue
            for output in node.outputs:
                found = matcher.match(output, facts)
                if not isinstance(found, Match) or (roots := frozenset(found.roots)) in seen:
                    continue
                if len(roots) > 1:
                    seen.add(roots)
                yield found
