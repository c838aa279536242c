"""Decide which nodes are pure: deterministic and without side effects."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir.traits import KNOWN_DOMAINS, PURE, RANDOM, has
from ortfuse.ir.walk import subgraphs


class Purity:
    """Decide which nodes of one model are pure; cache the findings about the model's functions."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._known: dict[ir.OperatorIdentifier, bool] = {}

    def is_pure(self, node: ir.Node) -> bool:
        """Whether the node is a deterministic operator of a known domain, or calls a function made only of such operators.

        Nodes with subgraphs count as impure, to avoid analysing their bodies each time.
        """
        if has(node, RANDOM) or subgraphs(node):
            return False
        if node.op_type == "Dropout":
            return not _may_train(node)
        if node.op_type == "BatchNormalization":
            return not updates_statistics(node)
        if self._functions and node.op_identifier() in self._functions:
            return self._is_pure_function(node.op_identifier())
        return node.domain in KNOWN_DOMAINS or has(node, PURE)

    def _is_pure_function(self, identifier: ir.OperatorIdentifier) -> bool:
        """Whether no function reachable from this one contains an impure node. Each function is looked at once."""
        waiting, entered = [identifier], set[ir.OperatorIdentifier]()
        while waiting:
            name = waiting[-1]
            called = {node.op_identifier() for node in self._functions[name]} & self._functions.keys()
            unknown = [other for other in called if other not in self._known]
            if name in self._known:
                waiting.pop()
            elif name in entered or not unknown:
                self._known[name] = self._has_pure_nodes(name)
                waiting.pop()
            else:
                entered.add(name)
                waiting += unknown
        return self._known[identifier]

    def _has_pure_nodes(self, identifier: ir.OperatorIdentifier) -> bool:
        """Whether all nodes of a function are pure; what is known of the functions that it calls is trusted."""
        return all(
            self._known.get(called, True) if (called := node.op_identifier()) in self._functions else self.is_pure(node)
            for node in self._functions[identifier]
        )


def draws_random(node: ir.Node) -> bool:
    """Whether a node draws random numbers: as its operator does, or because it is a Dropout that may be in training mode."""
    return has(node, RANDOM) or (node.op_type == "Dropout" and not node.domain and may_drop(node))


def may_drop(node: ir.Node) -> bool:
    """Whether a Dropout has a training_mode that is no constant False."""
    if not _may_train(node):
        return False
    mode = node.inputs[2]
    known = None if mode is None else ir.convenience.get_const_tensor(mode)
    return known is None or bool(known.numpy())


def _may_train(node: ir.Node) -> bool:
    """Whether a Dropout has a training_mode input (opset 12 and later), whatever its value."""
    return len(node.inputs) > 2 and node.inputs[2] is not None


def updates_statistics(node: ir.Node) -> bool:
    """Whether a BatchNormalization is in training mode: by attribute since opset 14, by its outputs before."""
    mode = node.attributes.get("training_mode")
    return len(node.outputs) > 1 or (mode is not None and (mode.is_ref() or mode.as_int() != 0))
