"""Store the error bound of a quantised model in its metadata, and check it in `ortfuse verify`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.errors import OptionError
from ortfuse.io.bounded_text_files import from_json
from ortfuse.quantization.input_sets import generated
from ortfuse.quantization.kv_cache_quantization import in_float32
from ortfuse.quantization.metrics import METRICS, Metric, UserFunction, error_words, metric_of
from ortfuse.quantization.run_half_models import LikeFloat32
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.int8_kv_caches import integer_caches
from ortfuse.runtime.session import Session
from ortfuse.runtime.unrepresentable_models import Runnable, signature_of
from ortfuse.serialization import entry
from ortfuse.verification.equivalence import demand_same_interface
from ortfuse.verification.verdict import State, Verdict

KEY = "ortfuse.bound"
"""The key of the bound in a model's metadata."""

LONGEST_NAME = 200
"""Characters of a metric's name that are shown."""

COMPARED = 16
"""How many sets of inputs are generated to compare two models on."""

_STATED = "the second model states this bound itself; --tolerance compares it as if it did not"
_OTHERS = 1 << 20
"""The first seed of those inputs: no search has seen them."""


@dataclass(frozen=True)
class Bound:
    """The largest error of a model's outputs.

    Attributes:
        metric: How it is measured.
        error: The largest error.
        stated: Whether the model itself says so.
    """

    metric: Metric
    error: float
    stated: bool = False


def write_bound(model: ir.Model, bound: Bound) -> None:
    """Write a bound into a model; that of a function that has no importable name is left out."""
    if bound.metric.name in METRICS or ":" in bound.metric.name:
        content = {"metric": bound.metric.name, "max_error": bound.error, "outputs": list(bound.metric.judged)}
        model.metadata_props[KEY] = json.dumps(content)


def read_bound(model: Runnable) -> Bound | None:
    """The bound that a model states; `None` if it states none, or one that a model of zeros keeps too.

    A function that the model names is not imported: the metric has its name and nothing else.
    """
    text = model.metadata_props.get(KEY) if isinstance(model, ir.Model) else None
    try:
        content = from_json(text or "")
        name, error, outputs = content["metric"], float(content["max_error"]), tuple(map(str, content["outputs"]))
    except (ValueError, TypeError, KeyError, OverflowError):
        return None  # somebody else's
    if not isinstance(name, str) or not 0 < error < (1.0 if name in METRICS else math.inf):
        return None
    metric = metric_of(name, outputs) if name in METRICS else Metric(name, None, judged=outputs)
    return Bound(metric, error, stated=True)


def bound_between(
    original: Runnable, other: Runnable, max_error: float | None = None, metric: str | UserFunction | None = None
) -> Bound | None:
    """The bound under which two models are compared; `None` if they are to be equal.

    Args:
        original: The first model. If it states the same bound, both are results of the same search, or one is made of the other.
        other: The second model.
        max_error: The user's bound.
        metric: The user's metric.

    Raises:
        OptionError: The bound is no positive number, the metric cannot be used, or is a function that only the model names.
    """
    found = read_bound(other)
    if max_error is None:
        if found is None or found == read_bound(original):
            if metric is not None:
                raise OptionError("metric", "say with `max_error` how large the error may be")
            return None
        if metric is None:
            return Bound(_own(found.metric), found.error, stated=True)
        if metric != found.metric.name:
            raise OptionError("metric", f"say with `max_error` how large the error may be; {_by(found.metric)}")
        return Bound(metric_of(metric, found.metric.judged), found.error, stated=True)
    demand_bound(max_error)
    if metric is None:
        return Bound(METRICS["l2"] if found is None else _own(found.metric), float(max_error))
    return Bound(metric_of(metric), float(max_error))


def _own(metric: Metric) -> Metric:
    """A metric of a model, if it is one of ours: code that a model names is run only if the user names it, too.

    Raises:
        OptionError: It is a function.
    """
    if metric.name not in METRICS:
        raise OptionError("metric", f"{_by(metric)}; name it too to have it imported and called, or give `tolerance`")
    return metric


def _by(metric: Metric) -> str:
    name = metric.name if len(metric.name) <= LONGEST_NAME else metric.name[:LONGEST_NAME] + "..."
    return f"the second model states a bound by {name!r}"


def demand_bound(max_error: object) -> None:
    """Check that a bound is a number above 0.

    Raises:
        OptionError: It is not.
    """
    if isinstance(max_error, bool) or not isinstance(max_error, int | float) or not 0 < max_error < math.inf:
        raise OptionError("max_error", f"write a number above 0, such as 0.01, not {max_error!r}")


@dataclass
class BoundVerdict(Verdict):
    """Whether a model keeps a bound.

    Attributes:
        error: The error of the model, in terms of the metric.
        bound: The largest that is allowed.
        metric: The name of the metric.
        label: What the models were run on.
    """

    error: float = 0.0
    bound: float = 0.0
    metric: str = ""
    label: str = field(default="", metadata=entry(omit=True))

    @property
    def ok(self) -> bool:
        """Whether the error is at most the bound."""
        return self.error <= self.bound

    @property
    def state(self) -> State:
        """Within the bound, or above it."""
        return "within the bound" if self.ok else "above the bound"

    def summary(self) -> str:
        """The verdict in one line."""
        return f"{self.metric} error {error_words(self.error)} on {self.label}; the bound is {self.bound:.3g}"


def keeps(
    original: Runnable, other: Runnable, bound: Bound, inputs: Sequence[Inputs] | None = None, seed: int = 0
) -> BoundVerdict:
    """Compare a model with its original under a bound.

    Args:
        original: The original.
        other: The model that is to keep the bound.
        bound: The bound.
        inputs: Sets of inputs; by default inputs of typical sizes are generated.
        seed: Seed of the generated inputs.

    Raises:
        VerificationError: A model cannot be executed or imitated, or the names of their inputs or outputs differ.
        OptionError: The user's metric fails.
    """
    demand_same_interface(original, other)
    bound.metric.demand_outputs([value.name or "" for value in signature_of(original).graph.outputs])
    session, lowered, caches = Session(original), LikeFloat32(original, other), integer_caches(other)
    notes = [*lowered.notes, *([_STATED] if bound.stated else [])]
    if inputs is None:
        first = _OTHERS + COMPARED * seed
        sizes, inputs = generated(session, signature_of(original), {}, range(first, first + COMPARED))
        label = f"{len(inputs)} generated sets of inputs ({sizes})"
        notes.append("the inputs were generated: give those that the bound was meant for with --inputs")
    else:
        label = f"{len(inputs)} given sets of inputs"
    expected = [session.run(arrays) for arrays in inputs]
    found = [[in_float32(outputs, caches) for outputs in lowered.runs(arrays)] for arrays in inputs]
    # Each way to run it by itself, the runtime's and the one that rounds: the worse of the two counts.
    error = max(bound.metric.of(expected, way, inputs).error for way in zip(*found, strict=True))
    return BoundVerdict([], notes, error=error, bound=bound.error, metric=bound.metric.name, label=label)
