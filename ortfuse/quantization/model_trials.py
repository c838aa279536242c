"""Run whole models with schemes applied, and compare their outputs with those of the original."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from ortfuse.errors import OrtfuseError
from ortfuse.quantization.input_sets import Samples
from ortfuse.quantization.measurement_store import Store
from ortfuse.quantization.metrics import Arrays, Measured, Metric
from ortfuse.quantization.output_effects import Probe
from ortfuse.quantization.scheme_set_protocol import Choice, SchemeSet
from ortfuse.runtime.session import Session, weight_bytes

LATEST = 3
"""How many models are kept, in case that they are asked for again."""


@dataclass(frozen=True)
class Tested:
    """The measured error of a choice.

    Attributes:
        seen: The error on the inputs that the search saw.
        held_out: The error on those that it never saw; `None` if there are none.
        likely: What is expected at most on other inputs of the kind.
        effects: The error of each output as `Probe` has it, against the float32 model.
        size: The bytes of weights.
        whole: Whether it was run on all inputs.
        problem: Why it cannot be run; empty if it can.
    """

    seen: float
    held_out: float | None
    likely: float
    effects: tuple[float, ...] = ()
    size: int = 0
    whole: bool = True
    problem: str = ""


class Trial:
    """Run choices.

    Args:
        scheme_set: The schemes.
        model: The float32 model.
        calibration: The ranges of values.
        inputs: What the models are run on.
        expected: The outputs of the original on all inputs.
        metric: How far outputs are apart.
        probe: Compares outputs with those of the float32 model, on the first of the inputs that the search sees.
        probed: The number of those inputs.
        store: Where the results are kept.
        threads: Threads of the runtime.
        bound: What errors are not to be above; choices are run on all inputs whatever their error is without it.
    """

    def __init__(
        self,
        scheme_set: SchemeSet,
        model: ir.Model,
        calibration: Any,
        inputs: Samples,
        expected: Sequence[Arrays],
        metric: Metric,
        probe: Probe,
        probed: int,
        store: Store,
        threads: int,
        bound: float | None = None,
    ) -> None:
        self._scheme_set, self._model, self._calibration, self._threads = scheme_set, model, calibration, threads
        self._inputs, self._expected, self._metric, self._bound = inputs, expected, metric, bound
        self._made: deque[tuple[Choice, ir.Model]] = deque(maxlen=LATEST)
        self._ran: tuple[Choice, list[Arrays]] | None = None
        self._probe, self._probed, self._store = probe, probed, store.within(metric.name, metric.judged)
        # An error on some inputs is at least as large on all, if it is the worst over them.
        self._tells = metric.function is None and not metric.decides

    def made(self, choice: Choice) -> ir.Model:
        """The model of a choice.

        Raises:
            OrtfuseError: It cannot be made.
        """
        if not choice:
            return self._model
        found = next((model for known, model in self._made if known == choice), None)
        if found is None:
            found = self._scheme_set.lowered(self._model, choice, self._calibration)
            self._made.append((choice, found))
        return found

    def test(self, choice: Choice) -> Tested:
        """Run a choice on all inputs; on the first alone, if its error there is above the bound already."""
        key = json.dumps(sorted(choice.items()))
        known = self._store.get_record(Tested, "trial", key) if self._metric.function is None else None
        if known is not None and (known.whole or self._is_too_large(known.seen)):
            return known
        try:
            found = self._test(choice)
        except OrtfuseError as error:
            return Tested(math.inf, math.inf, math.inf, problem=str(error))
        self._store.put(asdict(found), "trial", key)
        return found

    def _test(self, choice: Choice) -> Tested:
        model = self.made(choice)
        session, size = Session(model, threads=self._threads), weight_bytes(model)
        outputs: list[Arrays] = [session.run(arrays) for arrays in self._inputs.all[: self._probed]]
        effects = self._probe.distances(outputs)
        if self._tells:
            seen = self._metric.of(self._expected[: self._probed], outputs, self._inputs.all[: self._probed])
            if self._is_too_large(seen.error):
                return Tested(seen.error, None, seen.likely, effects, size, whole=False)
        outputs += [session.run(arrays) for arrays in self._inputs.all[self._probed :]]
        self._ran = (choice, outputs)
        count = len(self._inputs.search)
        error = self._metric.of(self._expected[:count], outputs[:count], self._inputs.search).error
        held = self._held_out(outputs, count)
        likely = max(self._telling(choice, outputs).likely, error, held or 0.0)  # of a mean, either half may be larger
        return Tested(error, held, likely, effects, size)

    def _is_too_large(self, error: float) -> bool:
        return self._bound is not None and error > self._bound

    def _telling(self, choice: Choice, outputs: Sequence[Arrays], more: Sequence[Arrays] = ()) -> Measured:
        """The error on the inputs that are like any others to a choice, and on the fresh ones if their outputs are given."""
        observes = any(self._scheme_set.observes(scheme) for scheme in choice.values())
        fitted = observes or any(self._scheme_set.is_fitted(scheme) for scheme in choice.values())
        numbers = self._inputs.telling(fitted)
        fresh = self._inputs.fresh[: len(more)]
        return self._metric.of(
            [*(self._expected[number] for number in numbers), *(expected for _, expected in fresh)],
            [*(outputs[number] for number in numbers), *more],
            [*(self._inputs.all[number] for number in numbers), *(inputs for inputs, _ in fresh)],
            clips=observes,
        )

    def proved(self, choice: Choice) -> Measured | None:
        """The error of a choice on fresh inputs too, which nothing was chosen by; `None` if there are none."""
        if not self._inputs.fresh:
            return None
        key = json.dumps([len(self._inputs.fresh), sorted(choice.items())])
        known = self._store.get_record(Measured, "proof", key) if self._metric.function is None else None
        if known is not None:
            return known
        session = Session(self.made(choice), threads=self._threads)
        ran = self._ran[1] if self._ran is not None and self._ran[0] == choice else None
        outputs = [session.run(arrays) for arrays in self._inputs.all] if ran is None else ran
        found = self._telling(choice, outputs, [session.run(arrays) for arrays, _ in self._inputs.fresh])
        self._store.put(asdict(found), "proof", key)
        return found

    def _held_out(self, outputs: Sequence[Arrays], count: int) -> float | None:
        if not self._inputs.held_out:
            return None
        return self._metric.of(self._expected[count:], outputs[count:], self._inputs.held_out).error

    def effects(self, choice: Choice) -> tuple[float, ...]:
        """The error of each output of a choice as `Probe` has it; infinite if it cannot be run."""
        try:
            session = Session(self.made(choice), threads=self._threads)
            return self._probe.distances([session.run(arrays) for arrays in self._inputs.search[: self._probed]])
        except OrtfuseError:
            return (math.inf,)
