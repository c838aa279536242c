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
    "multi_head_attention_forward": "attention",
    "_native_multi_head_attention": "attention",
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
# The kinds that every record states, 0 if they never ran.
_ALWAYS = (
    *("attention", "layer_norm", "rms_norm", "batch_norm", "group_norm", "conv", "linear"),
    *("rotary", "rotary_tensors"),
)
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
_ROTARY = re.compile(r"^_?apply_\w*rotary\w*$")
_MATRIX_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "einsum"})
# What may stand between the softmax and the product with V without changing that this is an attention.
_TRANSPARENT = frozenset(
    {"dropout", "to", "type", "type_as", "float", "half", "contiguous", "view", "reshape", "expand", "transpose"}
    | {"where", "masked_fill", "__getitem__"}
)


class _Recorder(TorchFunctionMode):
    """Counts function calls; recognises eager attention as a softmax over the last axis that is a factor of a product.

    What a counted function calls itself is not seen: the linear layers of torch's own multi-head attention do not count.
    """

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
            if kwargs.get("dim", args[1] if len(args) > 1 else None) in (-1, out.ndim - 1):
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
    """(counter, key) when the module is known to spell out an activation or a linear layer, else None."""
    name = type(module).__name__
    if name in _SPELLED:
        return "activations", _SPELLED[name]
    if name == "Conv1D":  # GPT-2's transposed linear layer, an addmm inside
        return "functions", "linear"
    return None


def _is_rms_norm(module: nn.Module, value: Any, result: Any) -> bool:
    """Whether the result is x / sqrt(mean(x^2)) times one gain for each channel, whatever the module is called.

    No gain may be 0: a ReLU that only sees negative values returns x times 0.
    """
    shapes = [parameter.ndim for parameter in module.parameters()]
    if shapes not in ([], [1]) or not (isinstance(value, torch.Tensor) and isinstance(result, torch.Tensor)):
        return False
    if result.shape != value.shape or not value.is_floating_point() or value.ndim < 2 or torch.equal(value, result):
        return False
    scaled = (value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + 1e-6)).flatten(0, -2)
    rows = result.flatten(0, -2)
    gain = (rows * scaled).sum(0) / scaled.pow(2).sum(0)
    return len(rows) > 1 and bool(gain.all()) and torch.allclose(rows, scaled * gain, rtol=1e-3, atol=1e-3)


@contextmanager
def _hooked(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Count the calls of modules that spell out what they compute.

    The recorder is muted while a known one runs; a normalisation is known by its result (``_is_rms_norm``) or its name,
    and counts only when it has not called a counted function for it.
    """

    def enter(counter: str, key: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if not recorder.muted:
                getattr(recorder, counter)[key] += 1
            recorder.muted += 1

        return hook

    def leave(*_: Any) -> None:
        recorder.muted -= 1

    seen: dict[int, int] = {}

    def norms() -> int:
        return sum(count for kind, count in recorder.functions.items() if kind.endswith("_norm"))

    def before(module: nn.Module, _: Any) -> None:
        seen[id(module)] = norms()

    def after(module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        if recorder.muted or norms() != seen[id(module)] or not arguments:
            return
        recorder.muted += 1
        if _is_rms_norm(module, arguments[0], result):
            recorder.functions["rms_norm"] += 1
        elif type(module).__name__.endswith("LayerNorm"):
            recorder.functions["layer_norm"] += 1
        recorder.muted -= 1

    with ExitStack() as stack:
        for module in model.modules():
            spelled = _spelled_name(module)
            if spelled is not None:
                stack.callback(module.register_forward_pre_hook(enter(*spelled)).remove)
                stack.callback(module.register_forward_hook(leave, always_call=True).remove)
            elif not any(module.children()):
                stack.callback(module.register_forward_pre_hook(before).remove)
                stack.callback(module.register_forward_hook(after).remove)
        yield


@contextmanager
def _rotary_counted(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Count the calls of ``apply_rotary_*``: functions of the Python modules that define the layers, and their methods."""

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            recorder.functions["rotary"] += 1
            recorder.functions["rotary_tensors"] += len(result) if isinstance(result, tuple) else 1
            return result

        return call

    with ExitStack() as stack:
        classes = {type(module) for module in model.modules()}
        for owner in [*classes, *{sys.modules[kind.__module__] for kind in classes}]:
            for name, value in list(vars(owner).items()):
                if _ROTARY.match(name) and callable(value):
                    stack.enter_context(mock.patch.object(owner, name, counted(value)))
        yield


def recurrent_layers(model: nn.Module) -> int:
    """Layers of recurrent networks, whether they are called as such, cell by cell, or their weights used in a loop."""
    layers = [module.num_layers for module in model.modules() if isinstance(module, nn.RNNBase)]
    return sum(layers) + sum(isinstance(module, nn.RNNCellBase) for module in model.modules())


def count_sites(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Run ``model(**inputs)`` once and count what it executes.

    Returns a dict with integer counts ``attention``, ``layer_norm``, ``rms_norm``, ``batch_norm``, ``group_norm``,
    ``conv``, ``linear``, ``rotary`` (calls; one call usually turns both Q and K), ``rotary_tensors`` (tensors turned)
    and ``activations`` (counts by name; ``gelu`` is the erf form, ``gelu_tanh`` the tanh form). A kind that never ran
    is 0. Other kinds (``conv_transpose``, ``instance_norm``) appear only when they ran, ``recurrent`` (layers) only where
    there are any.
    """
    recorder = _Recorder()
    with torch.no_grad(), _hooked(model, recorder), _rotary_counted(model, recorder), recorder:
        model(**inputs)
    counts: dict[str, Any] = {kind: recorder.functions[kind] for kind in _ALWAYS}
    counts.update({kind: n for kind, n in sorted(recorder.functions.items()) if kind not in counts})
    if recurrent := recurrent_layers(model):
        counts["recurrent"] = recurrent
    counts["activations"] = dict(sorted(recorder.activations.items()))
    return counts
