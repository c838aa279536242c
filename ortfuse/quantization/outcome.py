"""Class `Outcome`: the fastest model under the bound, and the measurements of every site."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import onnx_ir as ir

from ortfuse.ir.nn_module_of_node import labels_of
from ortfuse.quantization.output_effects import Spread
from ortfuse.quantization.phase_times import Phase
from ortfuse.runtime.bench import Latency
from ortfuse.serialization import Record, derived, entry

Goal = Literal["latency", "size", "memory"]
"""The quantity to minimise."""

GOALS: tuple[Goal, ...] = get_args(Goal)


@dataclass(frozen=True)
class Tried:
    """One scheme at one site.

    Attributes:
        scheme: Its name.
        seconds: The time of the site on it.
        saved_seconds: The time that is won against float32, in seconds.
        size: The bytes of the site's weights.
        local_error: The relative error of the site's own output; `None` if that was not measured.
        output_error: The error of the model's outputs that it alone makes; `None` if that was not measured.
        dropped: Why it was not considered further; empty if it was.
    """

    scheme: str
    seconds: float
    saved_seconds: float
    size: int
    local_error: float | None = None
    output_error: float | None = None
    dropped: str = ""


@dataclass(frozen=True)
class SiteReport:
    """One site.

    Attributes:
        name: The name of its output in the float32 model.
        operator: What computes it in float32.
        shapes: The shapes of what it takes, as text.
        scheme: The scheme that it is on in the result; empty for float32.
        seconds: Its time in float32.
        spread: The values that it takes.
        schemes: The schemes that were measured there, best first.
        refused: Why others are not legal there, by scheme.
        unquantized: Why nothing was measured there, and whose numbers stand for its own; empty if something was.
        module: The path of the module of the original network that it belongs to; empty if that is not known.
    """

    name: str
    operator: str
    shapes: str
    scheme: str = ""
    seconds: float = 0.0
    spread: Spread | None = None
    schemes: tuple[Tried, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    unquantized: str = ""
    module: str = ""

    @property
    def chosen(self) -> Tried | None:
        """The measurements of its chosen scheme."""
        return next((one for one in self.schemes if one.scheme == self.scheme), None)


@dataclass(frozen=True)
class Point(Record):
    """One choice, as a point of the curve of error against time.

    Attributes:
        label: How it came about.
        choice: The scheme of each site that is lowered.
        predicted_error: The root of the sum of squares of its sites' errors; `None` if it is not known.
        linear_error: Their sum.
        predicted_speedup: The time of the float32 model divided by the time that the sites' times leave of it.
        error: The error that was measured, the worst over all inputs; `None` if it was not run.
        expected_error: What is expected at most on other inputs.
        speedup: The speedup that was measured; `None` if it was not.
        size: The bytes of the model's weights; `None` if it was not built.
    """

    label: str
    choice: Mapping[str, str]
    predicted_error: float | None
    linear_error: float | None
    predicted_speedup: float
    error: float | None = None
    expected_error: float | None = None
    speedup: float | None = None
    size: int | None = None


@dataclass(frozen=True)
class Outcome(Record):
    """The fastest model that was found under a bound.

    Attributes:
        model: The model; the float32 model where nothing is gained.
        metric: The name of the metric.
        bound: The largest error that was allowed.
        goal: What was to be small.
        inputs: What it was run on, in words.
        chosen: The choice that the model is made by.
        error: Its error on the inputs that the search saw.
        held_out_error: Its error on those that it never saw; `None` if there were none.
        latency: The float32 model and the result, measured side by side; empty if the float32 model is the result.
        float_size: The bytes of weights of the float32 model.
        phases: What each phase of the search took.
        memory: The bytes that a process takes at most that loads and runs the float32 model, and the result, where that was the
            goal.
        sites: The sites, in the order of the graph.
        curve: All choices that were considered, fastest last.
        notes: Remarks for the user.
        reason: Why the float32 model is the result; empty if it is not.
        unquantized: Why weights have no site, by the name of what is computed with them.
        timed: Whether times counted; not where another tool runs the result.
    """

    model: ir.Model = field(repr=False, metadata=entry(omit=True))
    metric: str
    bound: float
    goal: Goal
    inputs: str
    chosen: Point
    error: float
    held_out_error: float | None
    latency: Sequence[Latency]
    float_size: int
    sites: Sequence[SiteReport] = field(repr=False)
    curve: Sequence[Point] = field(repr=False)
    notes: Sequence[str] = ()
    reason: str = ""
    memory: tuple[int, int] | None = None
    phases: Sequence[Phase] = ()
    unquantized: Mapping[str, str] = field(default_factory=dict)
    timed: bool = field(default=True, metadata=entry(omit=True))

    @property
    def speedup(self) -> float:
        """The measured speedup over the float32 model; 1 for that itself."""
        return self.latency[-1].speedup if self.latency else 1.0

    @property
    def labels(self) -> dict[str, str]:
        """How people know the sites, by name: after their modules."""
        return labels_of({site.name: site.module for site in self.sites})

    @property
    def lowered(self) -> dict[str, int]:
        """The number of sites on each scheme."""
        schemes = list(self.chosen.choice.values())
        return {scheme: schemes.count(scheme) for scheme in dict.fromkeys(schemes)}

    @property
    @derived("speedup")
    def measured_speedup(self) -> float | None:
        """The speedup over the float32 model; `None` where times do not count."""
        return self.speedup if self.timed else None

    @property
    @derived()
    def ok(self) -> bool:
        """Whether a model under the bound was found that gains something."""
        return not self.reason


def _finite(content: Any) -> Any:
    """JSON has no infinity: such a number is `None`."""
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return _number(content) if isinstance(content, float) else content


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
