"""Time every scheme once per kind of site, then repeat the candidates with fewer remaining each round.

Dozens of schemes that take turns leave time for a few runs of each, and what disturbs a machine makes some of these
twice as long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import onnx_ir as ir

from ortfuse.ir.model_structure_key import content_of
from ortfuse.quantization.measurement_store import Store
from ortfuse.quantization.site_times import Clock
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import weight_bytes
from ortfuse.serialization.dataclass_from_json import of_type

Times = dict[str, list[float]]
"""The seconds and bytes of each scheme, and of float32 as the empty name; nothing of those that cannot be run."""


class KindTimes:
    """The times of kinds of sites, each measured once for all sites of the kind, in any model.

    Args:
        clock: Measures times.
        store: Where they are kept.
    """

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock, self._store = clock, store
        self._tables: dict[str, Times] = {}
        self._sure: dict[str, set[str]] = {}

    def known(self, kind: str) -> Times:
        """The times of a kind."""
        if kind not in self._tables:
            self._tables[kind] = self._kept("kind", kind, Times, {})
            self._sure[kind] = set(self._kept("sure", kind, list[str], []))
        return self._tables[kind]

    def _kept(self, what: str, kind: str, declared: Any, otherwise: Any) -> Any:
        """Return the kept data, if they have the declared type."""
        try:
            return of_type(declared, self._store.get(what, kind))
        except ValueError:
            return otherwise

    def add(self, kind: str, models: Mapping[str, ir.Model], names: Collection[str], inputs: Inputs) -> None:
        """Measure models; those of the names that cannot be run are noted too."""
        table = self.known(kind)
        table |= self._timed(models, inputs)
        table |= {name: [] for name in names if name not in table}
        self._store.put(table, "kind", kind)

    def make_sure(self, kind: str, models: Mapping[str, ir.Model], inputs: Inputs) -> None:
        """Measure models of a kind that were measured before once more, unless that was done, and keep the shorter times."""
        table, sure = self.known(kind), self._sure[kind]
        if models.keys() <= sure:
            return
        for name, (seconds, size) in self._timed(models, inputs).items():
            table[name] = [min(seconds, table[name][0]), size]
        sure.update(models)
        self._store.put(table, "kind", kind)
        self._store.put(sorted(sure), "sure", kind)

    def _timed(self, models: Mapping[str, ir.Model], inputs: Inputs) -> Times:
        """The seconds and bytes of each model that can be run; those that differ in numbers alone are measured once."""
        kinds = {name: kind_of(model, inputs) for name, model in models.items()}
        first = {one: models[name] for name, one in reversed(kinds.items())}
        seconds = self._clock.seconds({one: first[one] for one in dict.fromkeys(kinds.values())}, inputs)
        return {name: [seconds[one], weight_bytes(first[one])] for name, one in kinds.items() if one in seconds}


def kind_of(model: ir.Model, inputs: Inputs) -> str:
    """A digest of what the time of a site depends on: its operators, types and sizes."""
    shapes = [(array.dtype.name, array.shape) for array in inputs.values()]
    nodes, weights, _ = content_of(model)  # the same kernels run whatever opset the model imports
    return hashlib.sha256(repr((nodes, weights, shapes)).encode()).hexdigest()[:24]


def shapes_of(inputs: Inputs) -> str:
    """The shapes of what a site takes, as text."""
    return ", ".join(f"[{', '.join(map(str, array.shape))}]" for array in inputs.values())
