"""Which operators of a model stay in float32 when the others become half: as few as keep what the model computes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.execution.experiments import Experiment
from ortfuse.execution.inputs import Inputs
from ortfuse.execution.loading import Loading
from ortfuse.execution.session import Arrays, Session
from ortfuse.precision.half.emulation import Finding, defaults, emulate, overflows
from ortfuse.precision.half.network import Units
from ortfuse.precision.half.write import imitate, rewrite
from ortfuse.precision.metrics import relative_l2
from ortfuse.precision.tolerance import limit_of
from ortfuse.targets import Target

TYPES = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}

_ROUNDS = 8
"""How often islands are extended towards what enters them."""

T = TypeVar("T")


class IslandSearch:
    """Finds the islands of one model."""

    def __init__(
        self, model: ir.Model, half: ir.DataType, keep_io: bool, target: Target | None, found: Sequence[Experiment],
        drawn: Sequence[tuple[Inputs, Arrays]], progress: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._model, self._half, self._keep_io, self._target = model, half, keep_io, target
        self._experiments, self._drawn, self._progress = found, drawn, progress
        self._units = self._new_units(model)
        self._local: dict[int, float] = {}
        self.notes = self._keep_ends()

    def run(self, bound: float | None) -> tuple[list[bool], int, ir.Model, dict[str, float]]:
        """The choice for each unit, the Casts it takes, the model, and the errors of its outputs.

        Raises:
            VerificationError: The bound cannot be met.
        """
        self._keep_what_fails()
        result = self._rewritten()[0].model
        if (
            self._half == ir.DataType.FLOAT16 and Loading.of_graph(result).problem()
        ):  # the runtime executes float16 itself
            self._keep_what_does_not_work(self._loads, "load")
        try:
            best = self._attempt()
        except VerificationError:
            self._keep_what_does_not_work(self._runs, "run")
            best = self._attempt()
        order = self._by_error()
        limit = math.inf if bound is None else bound
        least, count = -1, 0
        while not self._holds(best[3], limit) and count < len(order):
            least, count = count, min(len(order), max(1, count * 2))
            best = self._attempt(order[:count])
        if not self._holds(best[3], limit):
            least_error = f"the least is {max(best[3].values()):.2g}"
            raise VerificationError(
                f"no float32 islands keep the error below {limit:g}, {least_error}; nothing was written"
            )
        while count - least > 1:
            middle = (least + count) // 2
            other = self._attempt(order[:middle])
            if self._holds(other[3], limit):
                best, count = other, middle
            else:
                least = middle
        for unit in order[:count]:
            self._units.keep(unit, "the outputs would be off by more than is allowed")
        return best

    def islands(self, wide: Sequence[bool]) -> dict[str, str]:
        """What computes in float32, with the reason."""
        units = self._units.units
        return {
            one.name: one.reason or "fewer Casts are needed"
            for number, one in enumerate(units)
            if wide[number] and one.node is not None
        }

    def count(self, wide: Sequence[bool]) -> int:
        """How many operators compute in half precision."""
        return sum(not wide[unit] for unit in self._units.of_node.values())

    def _new_units(self, model: ir.Model) -> Units:
        return Units(model, self._half, keep_io=self._keep_io, target=self._target)

    def _keep_ends(self) -> list[str]:
        """Leave inputs and outputs in float32 that hold numbers beyond the range of the other type; returns notes on them."""
        units, graph, notes = self._units, self._units.model.graph, []
        ends = [(value, units.makers.get(value)) for value in graph.inputs]
        ends += [(value, units.uses.get(value, {}).get((graph, n))) for n, value in enumerate(graph.outputs)]
        known = [{**defaults(graph), **one.inputs, **one.expected} for one in self._experiments]
        for value, unit in ends:
            arrays = [one.get(value.name or "") for one in known]
            beyond = any(array is not None and overflows(array, self._half) for array in arrays)
            if unit is not None and beyond and units.keep(unit, "its numbers are out of range"):
                notes.append(
                    f"'{value.name}' stays float32: it holds numbers beyond the range of {self._half.name.lower()}"
                )
        return notes

    def _keep_what_fails(self) -> None:
        """Demand float32 where the emulation says so, until nothing fails that could be mended by what comes before it."""
        inputs = [one.inputs for one in self._experiments]
        for number in range(_ROUNDS):
            self._progress(f"emulating {self._half.name.lower()} ({number + 1})")
            wide = self._units.chosen()
            found = emulate(self._units, wide, inputs)
            self._local.update((one.unit, one.error) for one in found)
            if not sum(self._mended(one, wide[one.unit]) for one in found if one.reason):
                return

    def _mended(self, finding: Finding, is_wide: bool) -> bool:
        """Demand float32 of what fails or, if it has that, of what its operands come from; returns whether that is new."""
        units = self._units
        if not is_wide:
            return units.keep(finding.unit, finding.reason)
        node = units.units[finding.unit].node
        assert node is not None
        reason = f"{finding.reason}: so its operands are not rounded"
        makers = {units.makers[value] for value in node.inputs if value is not None and value in units.makers}
        return sum(units.keep(maker, reason) for maker in makers if units.units[maker].node is not None) > 0

    def _keep_what_does_not_work(self, works: Callable[[Sequence[int]], bool], verb: str) -> None:
        """Demand float32 of operators of as few kinds as it takes, and of as few of these, if the model works then.

        Args:
            works: Whether the model does with these nodes in float32, too.
            verb: What the runtime does not do with it so far.
        """
        units = self._units.units
        kinds: dict[str, list[int]] = {}
        for node, unit in self._units.of_node.items():
            if units[unit].kind != "float":
                kinds.setdefault(node.op_type, []).append(unit)

        def of(names: Sequence[str]) -> list[int]:
            return [unit for name in names for unit in kinds[name]]

        def works_with(others: Sequence[int], some: Sequence[int]) -> bool:
            return works([*others, *some])

        # What is left out first are products, and what there is most of.
        names = sorted(kinds, key=lambda name: (not units[kinds[name][0]].is_product, -len(kinds[name])))
        if not works(of(names)):
            return
        for name in (found := _fewest(names, lambda some: works(of(some)))):
            others = of([other for other in found if other != name])
            for unit in _fewest(kinds[name], functools.partial(works_with, others)):
                self._units.keep(unit, f"the runtime does not {verb} the model with {name} in float16")

    def _loads(self, more: Sequence[int]) -> bool:
        """Whether the runtime loads the model with these nodes in float32, too."""
        return not Loading.of_graph(self._without_others(more)).problem()

    def _runs(self, more: Sequence[int]) -> bool:
        """Whether it runs with them: some kernels say only then that they do not have the type."""
        model = self._without_others(more)
        try:
            Session(model, optimise=False).run(_typed(self._experiments[0].inputs, model))
        except VerificationError:
            return False
        return True

    def _by_error(self) -> list[int]:
        """The nodes that are half, those with the largest error of their own first; what was not emulated counts as largest."""
        wide = self._units.chosen()
        nodes = [unit for unit in self._units.of_node.values() if not wide[unit]]
        return sorted(nodes, key=lambda unit: -self._local.get(unit, math.inf))

    def _attempt(self, more: Sequence[int] = ()) -> tuple[list[bool], int, ir.Model, dict[str, float]]:
        """The model with some more nodes in float32, and the errors of its outputs."""
        units, wide, casts = self._rewritten(more)
        self._progress("running the result")
        runs = units.model
        if self._half == ir.DataType.BFLOAT16:
            copy = self._new_units(self._model.clone())
            imitate(copy, wide)
            runs = copy.model
        session = Session(runs, optimise=False)
        errors: dict[str, float] = {}
        for experiment in self._experiments:
            results = session.run(_typed(experiment.inputs, runs))
            for name, expected in experiment.expected.items():
                error = error_of(expected, results[name])
                if error is not None:
                    errors[name] = max(error, errors.get(name, 0.0))
        each: dict[str, list[float]] = {}
        for given, outputs in self._drawn:
            results = session.run(_typed(given, runs))
            for name in errors:
                each.setdefault(name, []).append(relative_l2(outputs[name], results[name]))
        for name, some in each.items():
            errors[name] = max(errors[name], limit_of(some))
        return wide, casts, units.model, errors

    def _without_others(self, more: Sequence[int]) -> ir.Model:
        """A copy of the model in which these nodes have float32 and no others that need not: none to save Casts."""
        units = self._with(more)
        rewrite(units, [one.kind == "float" for one in units.units])
        return units.model

    def _rewritten(self, more: Sequence[int] = ()) -> tuple[Units, list[bool], int]:
        """A copy of the model with some more nodes in float32, the choice for each unit, and the Casts it takes."""
        units = self._with(more)
        wide = units.chosen()
        return units, wide, rewrite(units, wide)

    def _with(self, more: Sequence[int]) -> Units:
        """The units of a copy of the model, with some more nodes that have to be in float32."""
        units = self._new_units(self._model.clone())
        for number, one in enumerate(self._units.units):
            units.units[number].kind = one.kind
        for unit in more:
            units.keep(unit, "")
        return units

    @staticmethod
    def _holds(errors: Mapping[str, float], limit: float) -> bool:
        return all(math.isfinite(error) and error <= limit for error in errors.values())


def _fewest(all_of_them: Sequence[T], works: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Of what a model works with, that which it takes; others are left out, the first first, half of them at once."""
    kept, part = all_of_them, len(all_of_them) // 2
    while part:
        for start in range(0, len(kept), part):
            rest = [*kept[:start], *kept[start + part :]]
            if rest and works(rest):
                kept = rest
                break
        else:
            part //= 2
    return kept


def _typed(inputs: Inputs, model: ir.Model) -> Inputs:
    """Inputs in the types that a model takes."""
    types = {value.name: kind.numpy() for value in model.graph.inputs for kind in TYPES.values() if value.dtype == kind}
    return {name: array.astype(types[name]) if name in types else array for name, array in inputs.items()}


def has_floats(array: Any) -> bool:
    """Whether these are floating-point numbers."""
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def error_of(expected: Any, found: Any) -> float | None:
    """The norm of the difference in relation to that of what is expected; `None` if there are no floats."""
    return relative_l2(expected, found) if has_floats(expected) else None
