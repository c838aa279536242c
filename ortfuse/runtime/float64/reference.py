"""Evaluate the original in float64: the reference that distinguishes rounding from errors."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ortfuse.analysis.facts import Facts
from ortfuse.errors import HangError, VerificationError
from ortfuse.io.convert_modelproto import to_proto
from ortfuse.ir import walk
from ortfuse.ir.purity import draws_random
from ortfuse.ir.traits import QUANTISES, has
from ortfuse.runtime.float64.convolution import Conv, ConvTranspose
from ortfuse.runtime.float64.estimate_reference_cost import TooLargeError, demand_room
from ortfuse.runtime.float64.partition import Segment, cut, to_model
from ortfuse.runtime.float64.pooling import AveragePool, GlobalAveragePool, GlobalMaxPool
from ortfuse.runtime.float64.widen import in_float64
from ortfuse.runtime.session import Arrays, Session, weight_bytes
from ortfuse.runtime.worker import LIMIT
from ortfuse.targets import Target, installed

LARGEST = 2 << 30
"""Models with more bytes of weights than this are not evaluated in float64: it would take longer than everything else."""

_ROUNDING = frozenset({"AffineGrid", "CausalConvWithState", "LinearAttention", "MelWeightMatrix", "TfIdfVectorizer"})
"""Operators that the reference implementation always computes in float32."""

_UNBOUNDED = frozenset({"ImageDecoder", "RegexFullMatch"})
"""Operators that are left to the runtime: a pattern of Python may be matched for ever, and other libraries decode images."""

_SHORTEST = 1.0
"""Seconds that the runtime has at least: to end a process and start another takes about as long."""

_END: ContextVar[float] = ContextVar("_END", default=math.inf)
"""When the evaluation that goes on has to be done, on the clock of `time.monotonic`."""

_NAMED, _LONGEST = 5, 120
"""The operators, and the characters of an error, that a reason quotes."""

_INLINED = frozenset({"Constant", "CastLike"})
"""Operators that the runtime executes without having a kernel for them."""


class Reference:
    """Evaluate a model in float64: in the runtime where it has kernels, otherwise by ONNX's reference implementation."""

    def __init__(self, model: ir.Model) -> None:
        self.reason = _infeasible(model)
        """Why there is no float64 evaluation; `None` if there is one."""
        self.too_large = ""
        """Why the last inputs were too large for one; empty if they were not."""
        if self.reason is not None:
            return
        wide = in_float64(model)
        if wide is None:
            self.reason = "it calls functions that cannot be put in the place of their calls"
            return
        self._model = wide
        facts, target = Facts(self._model), installed()
        opsets = self._model.graph.opset_imports
        self._segments = cut(self._model.graph, lambda node: _has_kernels(node, opsets, facts, target))
        self._executions: dict[int, _Execution] = {}

    def run(self, inputs: Mapping[str, Any], seconds: float = math.inf) -> Arrays | None:
        """All outputs in float64 (those of other types unchanged), or `None` (see `reason` and `too_large`).

        Args:
            inputs: Arrays by name.
            seconds: How long it may take. A loop may end in float32 and never in float64, where more numbers are sums.
        """
        self.too_large = ""
        if self.reason is not None:
            return None
        known, end = {name: _wide(array) for name, array in inputs.items()}, time.monotonic() + seconds
        try:
            for index, segment in enumerate(self._segments):
                known |= self._execute(index, segment, known, end - time.monotonic())
            return {value.name or "": self._value(value, known) for value in self._model.graph.outputs}
        except TooLargeError as error:
            self.too_large = str(error)
            return None
        except _InfeasibleError as error:
            self.reason = str(error)
            return None

    def _value(self, value: ir.Value, known: Mapping[str, Any]) -> Any:
        name = value.name or ""
        if name in known:
            return known[name]
        if value.const_value is None:
            raise _InfeasibleError(f"'{name}' has no value")
        return value.const_value.numpy()

    def _execute(self, index: int, segment: Segment, known: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        given = {
            value: self._value(value, known)
            for value in segment.inputs
            if value.const_value is None or (value.name or "") in known
        }
        arrays = {value.name or "": array for value, array in given.items()}
        if index not in self._executions:
            types = {value: _type_of(array, value) for value, array in given.items()}
            model = to_model(segment, types, self._model.graph.opset_imports)
            self._executions[index] = _Execution(model, segment.by_runtime)
        return self._executions[index].run(arrays, seconds)


class _InfeasibleError(Exception):
    """The model cannot be evaluated in float64."""


def _infeasible(model: ir.Model) -> str | None:
    if weight_bytes(model) > LARGEST:
        return f"the weights exceed {LARGEST >> 30} GB"
    for node in walk.nodes(model):
        if draws_random(node):
            return f"{node.op_type} draws random numbers"
        if has(node, QUANTISES):
            return f"{node.op_type} rounds to integers, and would round others in float64"
    return None


def _has_kernels(node: ir.Node, opsets: Mapping[str, int], facts: Facts, target: Target) -> bool:
    """Whether the runtime can execute the node, and all nodes in its subgraphs, on the types it has in the widened model."""
    if any(facts.dtype(value) is None for value in walk.used_values(node)) and not walk.subgraphs(node):
        return False
    outputs = [facts.dtype(value) if value.name else None for value in node.outputs]
    types = [facts.dtype(value) for value in node.inputs]
    if node.op_type in _INLINED and not node.domain:
        return True
    if not target.supports(node.domain, node.op_type, opsets.get(node.domain, 1), types, outputs):
        return False
    inner = (deep for graph in walk.subgraphs(node) for deep in graph)
    return all(_has_kernels(deep, opsets, facts, target) for deep in inner)


class Erf(OpRun):
    """The error function in float64; the reference implementation's own rounds to float32."""

    op_domain = ""

    def _run(self, x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any]]:
        return (_ERF(x).astype(x.dtype),)


_ERF = np.vectorize(math.erf, otypes=[np.float64])
_OWN: tuple[type[OpRun], ...] = (Erf, Conv, ConvTranspose, AveragePool, GlobalAveragePool, GlobalMaxPool)


class _Evaluator(ReferenceEvaluator):
    """The reference implementation with operators of our own, also inside ONNX function bodies (such as that of Gelu)."""

    def __init__(self, proto: Any, **options: Any) -> None:
        options["new_ops"] = [*(op for op in options.get("new_ops") or () if op not in _OWN), *_OWN]
        super().__init__(proto, **options)

    def run(self, *arguments: Any, **named: Any) -> Any:
        """Run the model, or an iteration of a loop in it."""
        if time.monotonic() > _END.get():
            raise TooLargeError("it takes more time than there is")
        return super().run(*arguments, **named)


class _Execution:
    """Run a segment: in the runtime as long as that works, then by ONNX's reference implementation."""

    def __init__(self, model: ir.Model, by_runtime: bool) -> None:
        self._model, self._session = model, None
        if by_runtime:
            with suppress(VerificationError):
                self._session = Session(model, optimise=False)

    def run(self, given: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """All outputs by name.

        Raises:
            TooLargeError: It takes too much time, or ONNX's reference implementation would need too much memory.
        """
        if self._session is not None:
            try:
                return self._session.run(given, limit=None if seconds > LIMIT else max(seconds, _SHORTEST))
            except HangError as error:
                raise TooLargeError(f"it takes more than {min(seconds, LIMIT):.0f} s") from error
            except VerificationError:
                self._session = None  # kernels do not always declare what they cannot do in float64
        operators = list(dict.fromkeys(node.op_type for node in self._model.graph))
        if not _ROUNDING.isdisjoint(operators):
            raise _InfeasibleError(f"ONNX's reference does {', '.join(operators)} in float32")
        unbounded = sorted({node.op_type for node in walk.nodes(self._model)} & _UNBOUNDED)
        if unbounded:
            raise _InfeasibleError(f"{unbounded[0]} is left to the runtime")
        demand_room(self._model, given, seconds)
        end = _END.set(time.monotonic() + seconds)
        try:
            with np.errstate(all="ignore"):
                evaluator = _Evaluator(to_proto(self._model))
                results = evaluator.run(None, dict(given))
        except TooLargeError:
            raise
        except MemoryError as error:
            raise TooLargeError(f"memory does not hold {', '.join(operators)} in float64") from error
        except Exception as error:
            # The reference lacks contrib operators, and some of its own implementations fail on valid input.
            text = f"neither the runtime nor ONNX's reference can do {_few(operators)} in float64"
            raise _InfeasibleError(f"{text} ({type(error).__name__}: {_short(error)})") from error
        finally:
            _END.reset(end)
        return dict(zip(evaluator.output_names, results or [], strict=True))


def _few(operators: Sequence[str]) -> str:
    return ", ".join(operators[:_NAMED]) + (" and others" if len(operators) > _NAMED else "")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:_LONGEST] or "without a message"


def _wide(array: Any) -> Any:
    if isinstance(array, list):
        return [_wide(element) for element in array]
    return array.astype(np.float64) if array.dtype.name in ("float16", "bfloat16", "float32") else array


def _type_of(value: Any, declared: ir.Value) -> ir.TypeProtocol:
    """The type of a computed value; only for an empty sequence is the declared type relied on."""
    if isinstance(value, list):
        if value:
            return ir.SequenceType(_type_of(value[0], declared))
        if not isinstance(declared.type, ir.SequenceType):
            raise _InfeasibleError(f"the type of the empty sequence '{declared.name}' is not known")
        return declared.type
    if value is None:
        raise _InfeasibleError(f"'{declared.name}' is an optional without a value")
    array = np.asarray(value)
    return ir.TensorType(ir.DataType.STRING if array.dtype == object else ir.DataType.from_numpy(array.dtype))
