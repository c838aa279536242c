"""Counts what a PyTorch model really executes, so that a golden test knows how many sites a rule should find.

The counts come from the running PyTorch model (function calls seen by a ``TorchFunctionMode``, module calls seen by
hooks), never from an exported graph: a graph can only say what an exporter left in it, not what was there.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

# Function names (``torch.x``, ``torch.nn.functional.x`` and ``Tensor.x`` alike) by what they count as.
_FUNCTIONS = {
    "scaled_dot_product_attention": "attention",
    "layer_norm": "layer_norm",
    "rms_norm": "rms_norm",
    "batch_norm": "batch_norm",
    "group_norm": "group_norm",
    "instance_norm": "instance_norm",
    "linear": "linear",
    "conv1d": "conv",
    "conv2d": "conv",
    "conv3d": "conv",
    "conv_transpose1d": "conv_transpose",
    "conv_transpose2d": "conv_transpose",
    "conv_transpose3d": "conv_transpose",
}
_ACTIVATIONS = frozenset(
    {"relu", "relu6", "leaky_relu", "prelu", "elu", "selu", "celu", "gelu", "silu", "mish", "glu", "softplus"}
    | {"sigmoid", "hardsigmoid", "hardswish", "tanh", "hardtanh"}
)
# Modules that spell a function out in elementary operations: the call counts once, what happens inside does not.
_SPELLED = {
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "GELUActivation": "gelu",
    "QuickGELUActivation": "quick_gelu",
    "ReLUSquaredActivation": "relu2",
    "MishActivation": "mish",
    "SiLUActivation": "silu",
}
# Named LayerNorm by history, but without mean subtraction and bias.
_RMS_NORMS = re.compile(r"RMSNorm\w*$|^(MT5|UMT5|LongT5|Pix2Struct\w*|Udop|Pop2Piano|SwitchTransformers|T5)LayerNorm$")
_ROTARY = re.compile(r"^apply_\w*rotary\w*$")
_MATRIX_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "einsum"})
# What may stand between the softmax and the product with V without changing that this is an attention.
_TRANSPARENT = frozenset(
    {"dropout", "to", "type", "type_as", "float", "half", "contiguous", "view", "reshape", "expand", "transpose"}
    | {"where", "masked_fill", "__getitem__"}
)


class _Recorder(TorchFunctionMode):
    """Counts function calls; recognises eager attention as softmax(...) used as a factor of a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: Counter[str] = Counter()
        self.activations: Counter[str] = Counter()
        self.muted = 0
        # Tensors are kept (not only their ids) because a freed tensor's id is handed out again.
        self._weights: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        out = func(*args, **kwargs)
        if self.muted:
            return out
        if name.rstrip("_") in _ACTIVATIONS:
            plain = name.rstrip("_")
            self.activations["gelu_tanh" if kwargs.get("approximate") == "tanh" else plain] += 1
        elif name in _FUNCTIONS:
            self.functions[_FUNCTIONS[name]] += 1
        elif name == "addmm":
            self.functions["linear"] += 1
        elif name == "softmax":
            self._weights[id(out)] = out
        elif name in _TRANSPARENT and self._is_attention_weight(args):
            if isinstance(out, torch.Tensor):
                self._weights[id(out)] = out
        elif name in _MATRIX_PRODUCTS and self._is_attention_weight(args):
            self.functions["attention"] += 1
        return out

    def _is_attention_weight(self, args: tuple[Any, ...]) -> bool:
        return any(isinstance(arg, torch.Tensor) and id(arg) in self._weights for arg in args)


def _spelled_name(module: nn.Module) -> tuple[str, str] | None:
    """(counter, key) when the module spells out an activation or an RMS normalisation, else None."""
    name = type(module).__name__
    if name in _SPELLED:
        return "activations", _SPELLED[name]
    if name == "Conv1D":  # GPT-2's transposed linear layer, an addmm inside
        return "functions", "linear"
    if _RMS_NORMS.search(name):
        return "functions", "rms_norm"
    return None


@contextmanager
def _hooked(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Count the calls of spelled-out modules, muting the recorder while they run."""

    def enter(counter: str, key: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if not recorder.muted:
                getattr(recorder, counter)[key] += 1
            recorder.muted += 1

        return hook

    def leave(*_: Any) -> None:
        recorder.muted -= 1

    with ExitStack() as stack:
        for module in model.modules():
            spelled = _spelled_name(module)
            if spelled is not None:
                stack.callback(module.register_forward_pre_hook(enter(*spelled)).remove)
                stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


@contextmanager
def _rotary_counted(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Count the calls of ``apply_rotary_*`` in the Python modules that define the model's layers."""

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            recorder.functions["rotary"] += 1
            return function(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for home in {type(module).__module__ for module in model.modules()}:
            namespace = sys.modules[home]
            for name, value in list(vars(namespace).items()):
                if _ROTARY.match(name) and callable(value):
                    stack.enter_context(mock.patch.object(namespace, name, counted(value)))
        yield


def count_sites(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Run ``model(**inputs)`` once and count what it executes.

    Returns a dict with integer counts ``attention``, ``layer_norm``, ``rms_norm``, ``batch_norm``, ``group_norm``,
    ``conv``, ``linear``, ``rotary`` (calls; one call usually turns both Q and K) and ``activations`` (counts by name;
    ``gelu`` is the erf form, ``gelu_tanh`` the tanh form). A kind that never ran is 0. Other kinds (``conv_transpose``,
    ``instance_norm``) appear only when they ran.
    """
    recorder = _Recorder()
    with torch.no_grad(), _hooked(model, recorder), _rotary_counted(model, recorder), recorder:
        model(**inputs)
    kinds = ["attention", "layer_norm", "rms_norm", "batch_norm", "group_norm", "conv", "linear", "rotary"]
    counts: dict[str, Any] = {kind: recorder.functions[kind] for kind in kinds}
    counts.update({kind: n for kind, n in sorted(recorder.functions.items()) if kind not in counts})
    counts["activations"] = dict(sorted(recorder.activations.items()))
    return counts
