"""Defer loading a pass until a model has operators that the pass transforms.

A pass states in a table (`ortfuse.pipeline.built_in_passes`) the operators without which it changes nothing and says nothing.
Loading all passes takes longer than running them over a small model.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortfuse.ir.walk import nodes
from ortfuse.rewrite import Exactness
from ortfuse.transforms.context import Context, Pass


@dataclass(frozen=True)
class PassEntry:
    """A pass that is not loaded yet.

    Attributes:
        name: The name of the pass in pipelines.
        home: Its module.
        kind: Its class.
        needs: Groups of operators: without one of each group in a model it does nothing. Domains do not count.
        exactness: `rounding` if some of its changes may round otherwise than what they replace, else `exact`.
    """

    name: str
    home: str
    kind: str
    needs: Sequence[frozenset[str]] = ()
    exactness: Exactness = Exactness.EXACT

    def loaded(self) -> type[Any]:
        """The class of the pass."""
        found: type[Any] = getattr(importlib.import_module(self.home), self.kind)
        return found

    def may_act_on(self, model: ir.Model) -> bool:
        """Whether a model has operators that the pass is about, in any of its graphs."""
        left = list(self.needs)
        for op_type in _operators(model) if left else ():
            left = [group for group in left if op_type not in group]
            if not left:
                break
        return not left


@dataclass(frozen=True)
class DeferredPass:
    """A pass with its default options, loaded when it may have something to do.

    Once it is loaded, by whatever, it runs over all models: it may take back remarks on nodes that are gone.
    """

    entry: PassEntry

    @property
    def name(self) -> str:
        """The name of the pass in pipelines."""
        return self.entry.name

    def run(self, context: Context) -> int:
        """Run the pass, if the model has operators that it is about; returns the number of changes."""
        if self.entry.home not in sys.modules and not self.entry.may_act_on(context.model):
            return 0
        made: Pass = self.entry.loaded()()
        return made.run(context)


def _operators(model: ir.Model) -> Iterator[str]:
    seen: set[str] = set()
    for node in nodes(model):
        if node.op_type not in seen:
            seen.add(node.op_type)
            yield node.op_type
