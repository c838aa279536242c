"""Search the smallest set of operators that must stay in float32 when the others become half."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from ortfuse.errors import BoundError, VerificationError
from ortfuse.ir.selection import objection
from ortfuse.quantization.emulate_half_model_in_float32 import imitation
from ortfuse.quantization.half.changed_orderings import InOrder, Run, in_order
from ortfuse.quantization.half.emulate_half_operators import Finding, defaults, emulate, overflows
from ortfuse.quantization.half.rewrite_types_and_insert_casts import rewrite
from ortfuse.quantization.half.same_type_units import Units
from ortfuse.quantization.metrics import METRICS
from ortfuse.quantization.run_half_models import run_of
from ortfuse.quantization.statistical_tolerance_limit import limit_of_rounding
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.load_check import Loading
from ortfuse.runtime.session import Arrays, Session
from ortfuse.targets import Target

TYPES = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}

L2 = METRICS["l2"]
"""How errors of outputs are measured; of integers, it is the share that differs."""

_EMULATED = 8
"""On how many of the inputs that are drawn for a bound operators are emulated."""

_ROUNDS = 8
"""How often islands are extended towards what enters them."""

T = TypeVar("T")


@dataclass(frozen=True)
class Attempt:
    """A model in half precision.

    Attributes:
        wide: For each unit whether it computes in float32.
        casts: How many Casts it takes.
        model: The model.
        errors: The errors of its outputs, by name.
        ran: The model that errors were measured on: every value is rounded that is half, as the runtime does not on the CPU.
    """

    wide: list[bool]
    casts: int
    model: ir.Model = field(repr=False)
    errors: dict[str, float]
    ran: ir.Model = field(repr=False)

    @property
    def is_emulated(self) -> bool:
        """Whether it has roundings that the runtime would leave out."""
        return self.ran is not self.model


class IslandSearch:
    """Find the islands of one model.

    Args:
        model: The model, without functions.
        half: float16 or bfloat16.
        keep_io: Whether inputs and outputs of the model stay float32.
        target: The runtime that has to have kernels; `None` for any.
        ran: What ranges are taken from: the model run on inputs of several sizes, or on the user's.
        drawn: The runs by whose errors those of others are told, if a bound is to hold.
        progress: Called with short messages.
    """

    def __init__(
        self, model: ir.Model, half: ir.DataType, keep_io: bool, target: Target | None, ran: Sequence[Run],
        drawn: Sequence[Run], progress: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._model, self._half, self._keep_io, self._target = model, half, keep_io, target
        self._ran, self._drawn, self._progress = ran, drawn, progress
        self._units = self._new_units(model)
        self._local: dict[int, float] = {}
        self.notes = self._keep_ends()

    def run(self, bound: float | None) -> Attempt:
        """The choice for each unit, the Casts it takes, the model, and the errors of its outputs.

        Raises:
            BoundError: The bound cannot be met.
            VerificationError: A model cannot be run.
        """
        self._keep_what_fails()
        result = self._rewritten()[0].model
        if (
            self._half == ir.DataType.FLOAT16 and Loading.of_graph(result).problem()
        ):  # the runtime executes float16 itself
            self._keep_what_does_not_work(self._loads, "load")
        limit = math.inf if bound is None else bound
        try:
            best = self._attempt(limit)
        except VerificationError:
            self._keep_what_does_not_work(self._runs, "run")
            best = self._attempt(limit)
        order = self._by_error()
        best, count = self._least(best, order, limit)
        for unit in order[:count]:
            self._units.keep(unit, "the outputs would be off by more than is allowed")
        return best

    def _least(self, best: Attempt, order: Sequence[int], limit: float) -> tuple[Attempt, int]:
        """The attempt that holds with as few more nodes in float32 as it takes, and how many these are.

        Args:
            best: The attempt with none of them.
            order: The nodes, those first that help most.
            limit: The largest error.

        Raises:
            BoundError: None holds.
        """
        least, count = -1, 0
        while not self._holds(best.errors, limit) and count < len(order):
            least, count = count, min(len(order), max(1, count * 2))
            best = self._attempt(limit, order[:count])
        if not self._holds(best.errors, limit):
            why = "; ".join([_unmet(limit, best.errors), *self.order(best).notes])
            raise BoundError(why)
        while count - least > 1:
            middle = (least + count) // 2
            other = self._attempt(limit, order[:middle])
            if self._holds(other.errors, limit):
                best, count = other, middle
            else:
                least = middle
        return best, count

    def order(self, attempt: Attempt) -> InOrder:
        """The errors of an attempt where everything is in the order of float32."""

        def load(model: ir.Model) -> Callable[[Inputs], Arrays]:
            return run_of(Session(model, optimise=False), self._model, model)

        return in_order(self._model, attempt.ran, attempt.errors, self._ran, load)

    def islands(self, wide: Sequence[bool]) -> dict[str, str]:
        """The operators in float32, with the reason."""
        units = self._units.units
        return {
            one.name: one.reason or "fewer Casts are needed"
            for number, one in enumerate(units)
            if wide[number] and one.node is not None
        }

    def count(self, wide: Sequence[bool]) -> int:
        """The number of operators that compute in half precision."""
        return sum(not wide[unit] for unit in self._units.of_node.values())

    def keep_what_is_not_selected(self, only: Sequence[str]) -> None:
        """Leave in float32 what the user excludes, by the marks of nodes.

        Args:
            only: The patterns of what alone may be half; none for everything.
        """
        for node, unit in self._units.of_node.items():
            if why := objection(node, only):
                self._units.keep(unit, why)

    def _new_units(self, model: ir.Model) -> Units:
        return Units(model, self._half, keep_io=self._keep_io, target=self._target)

    def _keep_ends(self) -> list[str]:
        """Leave inputs and outputs in float32 that hold numbers beyond the range of the other type; returns notes on them."""
        units, graph, notes = self._units, self._units.model.graph, []
        ends = [(value, units.makers.get(value)) for value in graph.inputs]
        ends += [(value, units.uses.get(value, {}).get((graph, n))) for n, value in enumerate(graph.outputs)]
        known = [{**defaults(graph), **given, **outputs} for given, outputs in (*self._ran, *self._drawn)]
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
        inputs = [given for given, _ in self._ran]
        inputs += [given for given, _ in self._drawn[:_EMULATED] if all(given is not one for one in inputs)]
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
        return sum(units.keep(maker, reason) for maker in makers if units.units[maker].kind == "free") > 0

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
            run_of(Session(model, optimise=False), self._model, model)(self._ran[0][0])
        except VerificationError:
            return False
        return True

    def _by_error(self) -> list[int]:
        """The nodes that are half, those with the largest error of their own first; what was not emulated counts as largest."""
        wide = self._units.chosen()
        nodes = [unit for unit in self._units.of_node.values() if not wide[unit]]
        return sorted(nodes, key=lambda unit: -self._local.get(unit, math.inf))

    def _attempt(self, limit: float, more: Sequence[int] = ()) -> Attempt:
        """The model with some more nodes in float32, and the errors of its outputs.

        Args:
            limit: The largest error that is allowed: of those that are beyond it, some more may be.
            more: The nodes.

        Raises:
            VerificationError: The runtime does not run it.
        """
        units, wide, casts = self._rewritten(more)
        self._progress("running the result")
        imitated = imitation(units.model)
        ways = [units.model] if imitated is None or self._half == ir.DataType.FLOAT16 else []
        ways += [] if imitated is None else [imitated]
        errors: dict[str, float] = {}
        for way in ways:
            run = run_of(Session(way, optimise=False), self._model, way)
            found = self._errors(run, limit, drawn=way is ways[-1])
            errors = {name: max(error, errors.get(name, 0.0)) for name, error in found.items()}
        return Attempt(wide, casts, units.model, errors, ways[-1])

    def _errors(self, run: Callable[[Inputs], Arrays], limit: float, *, drawn: bool) -> dict[str, float]:
        """The error of each output: the largest that was seen or, if a bound is to hold, that is to be expected on others.

        Args:
            run: Runs the model.
            limit: The largest error that is allowed: beyond it, the rest is not run.
            drawn: Whether it is run on what was drawn, too.
        """
        errors: dict[str, float] = {}
        for given, outputs in self._ran:
            for name, error in L2.each(outputs, run(given)).items():
                errors[name] = max(error, errors.get(name, 0.0))
        each: dict[str, list[float]] = {name: [] for name in errors}
        for given, outputs in self._drawn if drawn else ():
            for name, error in L2.each(outputs, run(given)).items():
                each[name].append(error)
            if not self._holds({name: some[-1] for name, some in each.items()}, limit):
                break
        return {name: max(error, limit_of_rounding(each[name])) for name, error in errors.items()}

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
    """Return few entries that still suffice: leave out half of them, then ever smaller parts, from the front on."""
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


def has_floats(array: Any) -> bool:
    """Whether these are floating-point numbers."""
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def _unmet(limit: float, errors: Mapping[str, float]) -> str:
    """Why a bound is not met, in words."""
    name, error = max(errors.items(), key=lambda item: item[1])
    least = f"the least is {error:.2g}" if math.isfinite(error) else "infinity or NaN stands where float32 has numbers"
    if math.isinf(limit):
        return f"no float32 islands keep '{name}' in range: {least}"
    return f"no float32 islands keep the error below {limit:g}, {least}, of '{name}'"
