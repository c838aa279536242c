"""Quantising: the fastest model whose error stays under a stated bound, chosen site by site on the machine at hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ortfuse.api import optimize
from ortfuse.assessment import Progress, given_inputs, silent
from ortfuse.errors import OptionError, OrtfuseError
from ortfuse.execution.loading import Loading
from ortfuse.model.atomic_write import writable_target
from ortfuse.model.interop import AnyModel, enter, leave
from ortfuse.model.io import save
from ortfuse.options import Options, PathLike, PipelineOptions
from ortfuse.pipeline.manager import PassManager
from ortfuse.pipeline.report import RunReport
from ortfuse.targets import Target, installed

if TYPE_CHECKING:
    from ortfuse.execution.inputs import Inputs
    from ortfuse.precision.metrics import UserFunction
    from ortfuse.precision.outcome import Goal, Outcome


class QuantizeOptions(PipelineOptions, total=False):
    """The options of `quantize` that it shares with `optimize`."""

    inputs: PathLike | Sequence[Inputs] | None
    seed: int
    sizes: Mapping[str, int]
    rounds: int
    threads: int
    output: PathLike | None
    link: bool
    loaded: bool


@dataclass(frozen=True)
class Quantized:
    """A model under a bound, with all that was found out on the way.

    Attributes:
        model: The model, of the same kind as the input (an `onnx_ir.Model` for a path).
        outcome: The choice, its error and speed, the sites, the curve, and why the model is in float32 if it is.
        report: What the optimisation in float32 did.
        written: The file that the model was written to.
    """

    model: Any = field(repr=False)
    outcome: Outcome
    report: RunReport = field(repr=False)
    written: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything but the model as data for JSON."""
        return {**self.outcome.to_dict(), "written": str(self.written) if self.written else None}


def quantize(
    model: AnyModel,
    options: Options | None = None,
    *,
    max_error: float,
    metric: str | UserFunction = "l2",
    goal: Goal = "latency",
    outputs: Sequence[str] = (),
    curve: bool = False,
    store: PathLike | None = "",
    progress: Progress | None = None,
    **changes: Unpack[QuantizeOptions],
) -> Quantized:
    """Find the fastest model whose outputs stay within a stated error of the original's. The input model is not changed.

    The model is optimised in float32 first. Every site at which lower precision is legal is then measured on this machine: how
    much time each rung wins there, and what it alone does to the outputs. The best choice is run as a whole, and its bound has to
    hold on inputs that the search never saw.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        options: How to optimise in float32, the inputs, and where to write the result; see `Options`.
        max_error: The largest error, in terms of the metric.
        metric: `"l2"`, `"max"`, `"cosine"`, `"top1"`, `"tokens"` (see `ortfuse.precision.metrics`), a function of the original's
            outputs, the result's and the inputs (a list of arrays by name each) that returns the error, or `"module:function"`.
        goal: What is to be small: `"latency"`, or the `"size"` of the weights or the `"memory"` that they take, without being
            slower.
        outputs: The names of the outputs that count; by default all.
        curve: Whether the choices under other bounds are run too, so that the curve has their true errors.
        store: The file that measurements are kept in, so that the search goes on where it was stopped; by default in the user's
            cache folder, `None` for none.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        BoundError: The bound cannot be met; nothing was written.
        OptionError: An option has an invalid value, or scipy is missing.
        VerificationError: The inputs do not fit the model, hold NaN, or the model cannot be run on them.
        OrtfuseError: The model cannot be used.
    """
    from ortfuse.precision.knapsack import demand_solver
    from ortfuse.precision.metrics import metric_of
    from ortfuse.precision.outcome import GOALS
    from ortfuse.precision.rules import Rules
    from ortfuse.precision.under_bound import Request, fastest

    progress = progress or silent
    if isinstance(max_error, bool) or not isinstance(max_error, int | float) or not 0 < max_error < math.inf:
        raise OptionError("max_error", f"write a number above 0, such as 0.01, not {max_error!r}")
    if goal not in GOALS:
        raise OptionError("goal", f"write {', '.join(GOALS)}, not {goal!r}")
    judged = metric_of(metric, outputs)
    options = Options.of(options, bench=True, **changes)
    if options.output is not None:
        writable_target(options.output)
    demand_solver()
    original, source = enter(model)
    given = given_inputs(options, original)
    plain = options.with_(output=None, verify=None, bench=False, sizes={}, inputs=None, link=False, measure=False)
    target = _target(plain)
    result = optimize(model, plain, progress=progress)
    if result.left_alone:
        raise OrtfuseError(f"the model cannot be quantised: {result.left_alone}")
    inside = enter(result.model)[0]
    asked = Request(
        judged, float(max_error), goal, given, options.sizes, options.seed, options.threads, options.rounds, curve
    )
    outcome = fastest(inside, original, asked, Rules(target=target), _store(store), progress)
    found = Quantized(leave(outcome.model, source), outcome, result.report)
    if options.output is None:
        return found
    progress(f"writing {options.output}")
    save(outcome.model, options.output, link=options.link, check=_load_written if options.loaded else None)
    return replace(found, written=Path(options.output))


def _target(options: Options) -> Target:
    """The target, which has to be what runs here, since everything is measured.

    Raises:
        OptionError: It is something else.
    """
    target = PassManager(options).target
    if target.table is not installed().table:
        raise OptionError(
            "target", "rungs are measured on this machine, with the runtime's CPU provider; leave the target out"
        )
    return target


def _store(path: PathLike | None) -> Any:
    from ortfuse.precision.store import Store, default_store

    return Store(default_store() if path == "" else None if path is None else Path(path))


def _load_written(path: Path, data: Mapping[str, Path]) -> Callable[[], None]:
    """Have the runtime load what is written but not yet in place."""
    return Loading.of_files(path, data).demand
