"""Declares, builds, exports and checks models: what the golden models and the full-size benchmark models share.

A ``Case`` says how to build one architecture and what to feed it; ``export_variant`` turns one of its variants (an
exporter and an attention implementation) into a checked ``.onnx`` file and a record of what PyTorch executed.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
import torch
import transformers
from drawing import Input, dynamic_axes, spread_weights
from quantising import QUANTISED_TOLERANCE, quantise, quantise_weights
from sites import count_sites
from torch import nn

Exporter = Literal["ts", "ts14", "tsbn", "dynamo", "raw", "unnamed", "qdq", "int4"]
EXPORTERS: tuple[Exporter, ...] = ("ts", "dynamo", "raw")
SEED = 20240229
# The variants of the TorchScript exporter. Before opset 17 it spells LayerNormalization out; 14 is the first opset in
# which it knows scaled_dot_product_attention. Told to preserve the mode, it keeps BatchNormalization, at opset 13 in the
# form that operator had before 14. What onnxruntime's quantizer makes of such an export is an exporter too. "unnamed" is
# torch.export where the user leaves it to find out which axes are one size: it names most of them on their own.
_TORCHSCRIPT: Mapping[Exporter, Mapping[str, Any]] = {
    "ts": {"opset_version": 17},
    "qdq": {"opset_version": 17},
    "int4": {"opset_version": 17},
    "ts14": {"opset_version": 14},
    "tsbn": {"opset_version": 13, "training": torch.onnx.TrainingMode.PRESERVE},
}
_TRACES = frozenset(
    {"pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node", "pkg.torch.onnx.class_hierarchy", "namespace"}
)


class ExportError(Exception):
    """The exported model is not the PyTorch model, or breaks a limit set on it."""


@dataclass(frozen=True)
class Case:
    """One architecture.

    ``build`` returns the module; it takes the attention implementation when ``attentions`` names any
    (``("eager", "sdpa")``), and nothing when the architecture has none. ``inputs`` are keyword arguments of
    ``forward`` by name. ``sizes`` are at least two assignments of the dynamic axes, different in every axis, no two
    axes the same in all of them: the first is exported, all are checked. ``layers`` is for modules whose
    configuration does not say. ``translations`` says what torch.export makes of operators of the case's own.
    """

    name: str
    build: Callable[..., nn.Module]
    inputs: Mapping[str, Input]
    sizes: Sequence[Mapping[str, int]]
    attentions: tuple[str, ...] = ()
    exporters: tuple[Exporter, ...] = EXPORTERS
    layers: int | None = None
    translations: Mapping[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """One file to produce: a case, its attention implementation (if any) and the exporter."""

    case: Case
    exporter: Exporter
    attention: str | None = None

    @property
    def name(self) -> str:
        """``bert.sdpa.ts``, or ``resnet.ts`` for a case without attention implementations."""
        return ".".join(part for part in (self.case.name, self.attention, self.exporter) if part)

    def module(self) -> nn.Module:
        """The PyTorch module, seeded, with no degenerate weights, in evaluation mode."""
        torch.manual_seed(SEED)
        module = self.case.build(self.attention) if self.attention else self.case.build()
        spread_weights(module, SEED)
        return module.eval()


class _Positional(nn.Module):
    """A module whose inputs come by position and whose outputs are a flat tuple, as the TorchScript tracer needs."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module, self.names = module, tuple(names)

    def forward(self, *values: torch.Tensor) -> Any:
        return tuple(_flat(self.module(**dict(zip(self.names, values, strict=True)))))


@dataclass
class Prepared:
    """A built module with its example inputs and PyTorch's outputs for each of the case's sizes."""

    module: nn.Module
    inputs: list[dict[str, torch.Tensor]]
    outputs: list[list[torch.Tensor]]
    output_names: list[str]
    output_axes: dict[str, dict[int, str]] = field(default_factory=dict)


def variants(cases: Sequence[Case]) -> Iterator[Variant]:
    """Every variant the cases declare, in declaration order."""
    for case in cases:
        for attention in case.attentions or (None,):
            for exporter in case.exporters:
                yield Variant(case, exporter, attention)


def select(cases: Sequence[Case], names: Sequence[str]) -> list[Variant]:
    """The variants whose name is, or starts at a dot boundary with, one of the names; all when no name is given.

    Raises:
        ValueError: a name selects nothing.
    """
    everything = list(variants(cases))
    unknown = [name for name in names if not any(f"{v.name}.".startswith(f"{name}.") for v in everything)]
    if unknown:
        raise ValueError(f"no such model: {', '.join(unknown)}; known: {', '.join(v.name for v in everything)}")
    return [v for v in everything if not names or any(f"{v.name}.".startswith(f"{name}.") for name in names)]


def prepare(variant: Variant) -> Prepared:
    """Build the module, draw its inputs, run it, and name its outputs and their dynamic axes."""
    case, module = variant.case, variant.module()
    generator = torch.Generator().manual_seed(SEED)
    inputs = [{name: spec.draw(sizes, generator) for name, spec in case.inputs.items()} for sizes in case.sizes]
    with torch.no_grad():
        named = module(**inputs[0])
        names = list(named.keys()) if isinstance(named, Mapping) else None
        outputs = [_flat(module(**values)) for values in inputs]
    if names is None or len(names) != len(outputs[0]):
        names = ["output"] if len(outputs[0]) == 1 else [f"output_{i}" for i in range(len(outputs[0]))]
    names = [f"out_{name}" if name in case.inputs else name for name in names]
    prepared = Prepared(module, inputs, outputs, names)
    for position, name in enumerate(names):
        prepared.output_axes[name] = dynamic_axes(name, [values[position] for values in outputs], case.sizes)
    return prepared


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in _flat(item)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _flat(item)]
    return []


def run_exporter(variant: Variant, prepared: Prepared, path: Path) -> None:
    """Write the variant's model to ``path`` as its exporter makes it, weights inside the file."""
    case, inputs = variant.case, prepared.inputs[0]
    common: dict[str, Any] = {"input_names": list(inputs), "output_names": prepared.output_names}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if variant.exporter in _TORCHSCRIPT:
            # Given keywords, the TorchScript exporter passes all of forward's parameters by position, None for those
            # not given, which transformers' forward decorators do not accept.
            torch.onnx.export(
                _Positional(prepared.module, list(inputs)).eval(),
                tuple(inputs.values()),
                str(path),
                dynamo=False,
                dynamic_axes={name: spec.axes for name, spec in case.inputs.items()} | prepared.output_axes,
                **_TORCHSCRIPT[variant.exporter],
                **common,
            )
            if variant.exporter == "qdq":
                quantise(path, [{name: value.numpy() for name, value in values.items()} for values in prepared.inputs])
        else:
            torch.onnx.export(
                prepared.module,
                (),
                str(path),
                kwargs=inputs,
                dynamo=True,
                optimize=variant.exporter != "raw",
                dynamic_shapes={name: _told(variant, spec.axes) for name, spec in case.inputs.items()},
                custom_translation_table=dict(case.translations),
                external_data=False,
                verbose=False,
                **common,
            )


def _told(variant: Variant, axes: Mapping[int, str]) -> dict[int, Any]:
    """What torch.export is told of an input's dynamic axes: their names, or only that they are dynamic."""
    return {axis: torch.export.Dim.DYNAMIC if variant.exporter == "unnamed" else name for axis, name in axes.items()}


def strip_traces(path: Path) -> None:
    """Remove what an exporter notes about its own run from the file's nodes.

    Stack traces hold the exporting machine's paths, and together with the traced source lines they outweigh a small
    model, as do the classes of the modules around each node. The modules' names (``name_scopes``) stay.
    """
    model = onnx.load(path)
    for node in _nodes([*model.graph.node, *(node for function in model.functions for node in function.node)]):
        kept = [(entry.key, entry.value) for entry in node.metadata_props if entry.key not in _TRACES]
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
        for key, value in kept:
            node.metadata_props.add(key=key, value=value)
    onnx.save(model, path)


def _nodes(given: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those in their bodies."""
    for node in given:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g.node)


def largest_error(path: Path, prepared: Prepared, *, relative: bool) -> float:
    """Largest difference between ONNX Runtime (graph optimizations off) and PyTorch over all sizes and outputs.

    With ``relative`` each output's difference is divided by its largest magnitude (but never by less than 1).

    Raises:
        ExportError: an output's shape or dtype differs, or a value is not finite.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    accepted = {value.name for value in session.get_inputs()}
    worst = 0.0
    for inputs, expected in zip(prepared.inputs, prepared.outputs, strict=True):
        feeds = {name: value.numpy() for name, value in inputs.items() if name in accepted}
        for name, value, want in zip(prepared.output_names, session.run(None, feeds), expected, strict=True):
            got = np.asarray(value)
            reference = want.detach().numpy()
            if got.shape != reference.shape or got.dtype != reference.dtype or not np.isfinite(reference).all():
                raise ExportError(
                    f"output {name}: {got.dtype}{got.shape}, PyTorch {reference.dtype}{reference.shape}, or not finite"
                )
            error = np.abs(got.astype(np.float64) - reference).max()
            worst = max(worst, float(error / max(1.0, np.abs(reference).max()) if relative else error))
    if not math.isfinite(worst):
        raise ExportError("the exported model's outputs are not finite")
    return worst


def layer_count(case: Case, module: nn.Module) -> int | None:
    """Number of layers: what the case declares, else what the transformers configuration says."""
    config = getattr(module, "config", None)
    depths = getattr(config, "depths", None)
    return case.layers or (sum(depths) if depths else getattr(config, "num_hidden_layers", None))


def export_variant(
    variant: Variant, folder: Path, *, tolerance: float, relative: bool = False, limit: int | None = None
) -> dict[str, Any]:
    """Export one variant to ``folder/<name>.onnx``, check it, and write and return the record beside it.

    Args:
        tolerance: largest accepted difference from PyTorch (see ``largest_error`` for ``relative``); what is quantised has
            one of its own.
        limit: largest accepted file size in bytes.

    Raises:
        ExportError: the file differs from PyTorch or is too large.
        Exception: whatever the exporter raises.
    """
    path = folder / f"{variant.name}.onnx"
    path.unlink(missing_ok=True)
    record_path = path.with_suffix(".json")
    record_path.unlink(missing_ok=True)
    prepared = prepare(variant)
    # Counted on a copy: hooks and a patched namespace must leave no trace in what is exported.
    sites = count_sites(copy.deepcopy(prepared.module), prepared.inputs[0])
    try:
        run_exporter(variant, prepared, path)
        strip_traces(path)
        if variant.exporter == "qdq":
            tolerance, relative = QUANTISED_TOLERANCE, True
        error = largest_error(path, prepared, relative=relative)
        if not error < tolerance:
            raise ExportError(f"differs from PyTorch by {error:.3g}, tolerance {tolerance:.3g}")
        if variant.exporter == "int4":
            # Checked as it was before: rounding to 4 bits moves random networks further than a wrong graph might.
            quantise_weights(path)
        if limit is not None and path.stat().st_size > limit:
            raise ExportError(f"{path.stat().st_size} bytes, limit {limit}")
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    model = onnx.load(path, load_external_data=False)
    record = {
        "exporter": variant.exporter,
        "attention": variant.attention,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "opset": next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")),
        "inputs": {
            name: {"dims": list(spec.dims), "kind": spec.kind} | ({"high": spec.high} if spec.high else {})
            for name, spec in variant.case.inputs.items()
        },
        "outputs": prepared.output_names,
        "sizes": [dict(sizes) for sizes in variant.case.sizes],
        "error": float(f"{error:.2g}"),
        "sites": sites | {"layers": layer_count(variant.case, prepared.module)},
    }
    record_path.write_text(json.dumps(record, indent=2) + "\n")
    return record


def count_again(variant: Variant, folder: Path) -> None:
    """Bring the record beside an exported variant up to date with what ``count_sites`` counts, without an export."""
    path = folder / f"{variant.name}.json"
    record = json.loads(path.read_text())
    prepared = prepare(variant)
    sites = count_sites(prepared.module, prepared.inputs[0])
    record["sites"] = sites | {"layers": layer_count(variant.case, prepared.module)}
    path.write_text(json.dumps(record, indent=2) + "\n")


def _reason(error: BaseException) -> str:
    """The error in one short line, without the installation's paths."""
    text = re.sub(r"\S*/site-packages/", "", f"{type(error).__name__}: {error}")
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(text.split())[:600]


def export_all(
    chosen: Sequence[Variant], folder: Path, *, tolerance: float, relative: bool = False, limit: int | None = None
) -> dict[str, str]:
    """Export the variants one after the other; keep ``folder/FAILED.json`` (name to reason) up to date.

    Returns the failures of this run. Entries of variants not chosen stay; entries that succeed now go away.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    ledger = folder / "FAILED.json"
    known: dict[str, str] = json.loads(ledger.read_text()) if ledger.exists() else {}
    failures: dict[str, str] = {}
    for variant in chosen:
        known.pop(variant.name, None)
        try:
            record = export_variant(variant, folder, tolerance=tolerance, relative=relative, limit=limit)
        except Exception as error:  # an exporter may raise anything; the next model is still wanted
            failures[variant.name] = _reason(error)
            print(f"{variant.name}: FAILED {failures[variant.name]}", flush=True)
        else:
            size = (folder / f"{variant.name}.onnx").stat().st_size
            print(f"{variant.name}: {size} bytes, opset {record['opset']}, error {record['error']:.2g}", flush=True)
        remaining = dict(sorted((known | failures).items()))
        if remaining:
            ledger.write_text(json.dumps(remaining, indent=2) + "\n")
        else:
            ledger.unlink(missing_ok=True)
    return failures
