"""How much faster the replacement of a rule runs than what it replaces, on this machine, at sizes that its proof calls typical.

The pattern is built in its first spelling and the rule applied; both models run interleaved, with the runtime's optimisations on
top. Images go in and out in the layout in which the runtime has them within a network (`ortfuse.bench.surrounded`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortfuse.bench.meter import repeats, seconds
from ortfuse.bench.scatter import median_bounds
from ortfuse.bench.surrounded import Image, pools, runs_in_blocks, surrounded
from ortfuse.calibration.candidates import Candidate
from ortfuse.errors import CrashError, OrtfuseError
from ortfuse.execution.inputs import Inputs
from ortfuse.execution.session import Session
from ortfuse.proof.build import Builder, element_type
from ortfuse.proof.instance import random_array
from ortfuse.proof.run import rewrite
from ortfuse.targets import CostTable, Target
from ortfuse.targets.costs import WORTH_IT

OPSET = 23
"""Where models with attention end up."""

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

MOSTLY = 0.2
"""What is left without the pools must be at least this share of a measurement; otherwise nothing is subtracted."""


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
        return low < WORTH_IT <= high and high - low > NOISY * self.speedup


def speedup(candidate: Candidate, threads: int = 0) -> Measurement | None:
    """Measure a candidate.

    `None` if there is nothing to measure: the rule is silent for this type, or the runtime refuses one of the models.
    """
    try:
        built = _built(candidate)
        if built is None:
            return None
        (before, after), images, inputs = built
        Session(before, threads=threads).run(inputs)
        try:
            Session(after, threads=threads).run(inputs)
        except CrashError:
            return Measurement(0.0, (0.0, 0.0))
        models = {"before": before, "after": after, **{str(shape): pools(shape) for shape in images}}
        ratios = _ratios(models, images, inputs, threads)
        bounds = median_bounds(ratios) or (min(ratios), max(ratios))
        return Measurement(round(statistics.median(ratios), 3), bounds)
    except (OrtfuseError, MemoryError):
        return None


def _built(candidate: Candidate) -> tuple[tuple[ir.Model, ir.Model], list[Image], Inputs] | None:
    """Both sides with their inputs, and the shapes of the images around them; `None` if the rule is silent."""
    rule = candidate.rule
    dtype, opset = element_type(candidate.dtype), rule.proof.opset or OPSET
    instance = Builder(rule, candidate.number, dtype, opset, typical=True).instance()
    rewritten = rewrite(rule, instance.model, Target(costs=CostTable({})))
    if not rewritten.hits or rewritten.error is not None:
        return None
    before, after, inputs = instance.model, rewritten.model, instance.inputs({}, 0)
    if not (runs_in_blocks(before) or runs_in_blocks(after)):
        return (before, after), [], inputs
    (before, images), (after, _) = surrounded(before), surrounded(after)
    return (before, after), images, inputs


def _ratios(models: Mapping[str, ir.Model], images: Sequence[Image], inputs: Inputs, threads: int) -> list[float]:
    """The time before divided by the time after, round by round."""
    sessions = {name: Session(model, threads=threads, isolated=False) for name, model in models.items()}
    given = dict.fromkeys(("before", "after"), inputs) | {str(shape): _pixels(shape) for shape in images}
    counts = {name: repeats(session, given[name]) for name, session in sessions.items()}
    ratios: list[float] = []
    order, started = list(sessions), time.perf_counter()
    while len(ratios) < ROUNDS and not _enough(ratios, time.perf_counter() - started):
        taken = {name: seconds(sessions[name], given[name], counts[name]) / counts[name] for name in order}
        # Two pools and two reorderings were measured; each image goes through one of each.
        around = sum(taken[str(shape)] for shape in images) / 2
        before, after = taken["before"], taken["after"]
        if min(before, after) - around < MOSTLY * min(before, after):
            around = 0.0
        ratios.append((before - around) / (after - around))
        order.append(order.pop(0))
    return ratios


def _pixels(shape: Image) -> Inputs:
    return {"x": random_array(np.random.default_rng(0), shape, ir.DataType.FLOAT, "normal")}


def _enough(ratios: Sequence[float], spent: float) -> bool:
    if len(ratios) < FEWEST:
        return False
    middle, bounds = statistics.median(ratios), median_bounds(ratios)
    return spent > LONGEST or (bounds is not None and bounds[1] - bounds[0] < 2 * EXACT * middle)
