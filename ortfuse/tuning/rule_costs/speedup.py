"""Speedup of the replacement of a rule over its pattern, on this machine, at sizes that its rule test calls typical.

The pattern is built in its first spelling and the rule applied; both models run interleaved, with the runtime's optimisations on
top. Operators that the runtime lacks are lowered in both: those that the rule itself lowers become what other rules make of them.
Images go in and out in the layout in which the runtime has them within a network (`ortfuse.runtime.bench.blocked_convolution`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from ortfuse.errors import CrashError, OrtfuseError
from ortfuse.options import Options
from ortfuse.pipeline import PassManager
from ortfuse.runtime.bench.confidence import median_bounds
from ortfuse.runtime.bench.rewrite_sides_in_turns import ratios, undisturbed_ratio
from ortfuse.runtime.current_execution_target import execution_target
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session
from ortfuse.targets import CostTable, Target
from ortfuse.targets.rule_speedups import WORTH_IT
from ortfuse.tuning.rule_costs.measurement_candidates import Candidate
from ortfuse.verification.rule_tests.build_instances import Builder, element_type
from ortfuse.verification.rule_tests.run_instance import rewrite

OPSET = 23
"""The opset that models with attention end up at."""

ROUNDS = 40
"""The most rounds."""

FEWEST = 8
"""The fewest rounds; with fewer than six the bounds of a median are not known."""

EXACT = 0.03
"""No further round is run once the bounds of the median are this close to it."""

LONGEST = 3.0
"""The seconds after which no further round is begun, once there are `FEWEST`."""

NOISY = 0.2
"""Bounds that are this share of the median apart, with 1 between them, tell nothing."""

WILD = 0.5
"""Nor do bounds that are this share of it apart, wherever they are."""


@dataclass(frozen=True)
class Measurement:
    """A speedup: the median over rounds of the time before divided by the time after; 0 if the runtime crashes on the latter.

    Attributes:
        speedup: The median.
        bounds: Its 95 % confidence interval.
    """

    speedup: float
    bounds: tuple[float, float]

    @property
    def unsure(self) -> bool:
        """Whether the machine is too busy to tell whether the replacement is worth it."""
        low, high = self.bounds
        return high - low > (NOISY if low < WORTH_IT <= high else WILD) * self.speedup


def speedup(
    candidate: Candidate, threads: int = 0, *, longest: float = LONGEST, shortest_times: bool = False
) -> Measurement | None:
    """Measure a candidate on the target for which models are executed, for about `longest` seconds at most.

    With `shortest_times` the speedup is that of the shortest times of each side, and the bounds those of halves of the rounds:
    for machines on which other processes run too.

    `None` if there is nothing to measure: the rule is silent for this type, or the runtime refuses one of the models.
    """
    try:
        built = _built(candidate)
        if built is None:
            return None
        before, after, inputs = built
        results = Session(before, threads=threads).run(inputs)
        try:
            Session(after, threads=threads).run(inputs)
        except CrashError:
            return Measurement(0.0, (0.0, 0.0))
        enough = partial(_enough, longest=longest)
        if shortest_times:
            whole, *halves = undisturbed_ratio((before, after), inputs, results, enough, threads=threads)
            return Measurement(round(whole, 3), (min(halves), max(halves)))
        found = ratios((before, after), inputs, results, enough, threads=threads)
        return Measurement(round(statistics.median(found), 3), median_bounds(found) or (min(found), max(found)))
    except (OrtfuseError, MemoryError):
        return None


def _built(candidate: Candidate) -> tuple[ir.Model, ir.Model, Inputs] | None:
    """Both sides and their inputs; `None` if the rule is silent."""
    rule = candidate.rule
    target = Target(execution_target(), costs=CostTable({}))
    dtype, opset = element_type(candidate.dtype), rule.test.opset or min(OPSET, target.max_opset)
    instance = Builder(rule, candidate.number, dtype, opset, typical=True).instance()
    rewritten = rewrite(rule, instance.model, target)
    if not rewritten.hits or rewritten.error is not None:
        return None
    before, inputs = instance.model, instance.inputs({}, 0)
    for model, without in ((before, (rule.name,)), (rewritten.model, ())):
        if target.lowers or model.ir_version > target.table.max_ir_version:
            PassManager(Options(passes="", target=target)).without_rules(without).run(model)
    return _with_parameters(before, rewritten.model, inputs)


def _with_parameters(before: ir.Model, after: ir.Model, inputs: Inputs) -> tuple[ir.Model, ir.Model, Inputs]:
    """Vectors behind the first input become constants: biases and gains are, and the runtime packs only what is constant."""
    first = before.graph.inputs[0].name
    vectors = {name: array for name, array in inputs.items() if array.ndim == 1 and name != first}
    for model in (before, after):
        for value in [value for value in model.graph.inputs if value.name in vectors]:
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(vectors[value.name or ""], name=value.name)
            model.graph.register_initializer(value)
    return before, after, {name: array for name, array in inputs.items() if name not in vectors}


def _enough(found: Sequence[float], spent: float, *, longest: float) -> bool:
    if len(found) < FEWEST:
        return False
    bounds = median_bounds(found)
    exact = bounds is not None and bounds[1] - bounds[0] < 2 * EXACT * statistics.median(found)
    return exact or spent > longest or len(found) >= ROUNDS
