"""Check in a background process that the runtime loads a model."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import CrashError, OrtfuseError
from ortfuse.ir import walk
from ortfuse.runtime.current_execution_target import execution_target
from ortfuse.runtime.function_expansion_limit import ExpansionError
from ortfuse.runtime.load_staged_files import as_written
from ortfuse.runtime.session import opened, separated, shortened, weight_bytes, zeros_folder
from ortfuse.runtime.session_subprocess import Level, Settings
from ortfuse.targets import Target, default_spec, libraries, with_functions

LEVELS: Sequence[Level] = ("all", "none", "basic")
"""The levels of the runtime's own optimisations at which people load models, the usual one first."""

_WITH: Mapping[Level, str] = {
    "all": "",
    "basic": " with its basic optimisations only",
    "none": " with its optimisations off",
}

_MANY = 500
"""Nodes from which on a model is loaded at the first level only: each of the others takes nearly as long."""

_MUCH = 1 << 26
"""Bytes of weights from which on the runtime does not repack them for its kernels, which would be most of the work."""


class UnloadableError(OrtfuseError):
    """The runtime does not load a model."""


def without_kernels_here(model: ir.Model, target: Target) -> str:
    """Return words on operators that another target stands in for without a kernel; empty if none does.

    The runtime does not load such a model here, which tells nothing about the target that it is for.

    Args:
        model: The model.
        target: The target that it is for.
    """
    if target.spec.runs_on:
        return ""
    here, facts, found = Target(default_spec()), Facts(model), dict[str, None]()
    for scope in walk.scopes(model):
        imports = scope.root.opset_imports
        for node in scope.graph:
            if node.op_identifier() in model.functions:
                continue
            if here.lacks_kernel(node, imports, facts) and not here.instead_of_kernel(node, imports, facts):
                found.setdefault(f"{node.domain}.{node.op_type}".strip("."))
    if not found:
        return ""
    return (
        f"no model runs for the target {target.spec.name} here, and the result was not loaded on {here.spec.name}, which has no "
        f"kernel for {', '.join(found)}"
    )


class Loading:
    """The runtime loading a model at several levels of its own optimisations; zeros stand for large weights.

    It starts at once and goes on beside whatever else is done.

    Args:
        source: The serialised model, in which large weights are zeros (`ortfuse.runtime.session.refer_to_zeros`).
        weights: Weights that are not in it.
        size: The bytes of its weights.
        levels: The levels to load it at.
    """

    def __init__(
        self, source: bytes, weights: Mapping[str, ir.TensorProtocol], size: int, levels: Sequence[Level]
    ) -> None:
        self._problem, self._target = "", execution_target()
        self._target.session_providers()  # refuse a target for which nothing can be loaded here
        self._thread = threading.Thread(target=self._load, args=(source, weights, size > _MUCH, levels), daemon=True)
        self._thread.start()

    @classmethod
    def of_graph(cls, model: ir.Model, levels: Sequence[Level] | None = None) -> Self:
        """The runtime loading a model that is not written yet, by default at all levels that are cheap."""
        source, weights = separated(with_functions(model), weightless=True)
        return cls(source, weights, weight_bytes(model), _cheap(len(model.graph)) if levels is None else levels)

    @classmethod
    def of_files(cls, path: Path, data: Mapping[str, Path]) -> Self:
        """The runtime loading a model file that was written under another name than it will have.

        Args:
            path: The model file.
            data: Its data files, by the names that it has for them.
        """
        found = as_written(path, data)
        return cls(found.source, {}, found.weight_bytes, _cheap(found.nodes))

    def problem(self) -> str:
        """Why the runtime does not load the model, empty if it does or is not asked to; waits until that is known.

        It is not asked to load a model whose calls of functions stand for too many nodes.
        """
        self._thread.join()
        return self._problem

    def demand(self) -> None:
        """Wait, and raise if the runtime does not load the model.

        Raises:
            UnloadableError: It does not; the message says why.
        """
        if problem := self.problem():
            raise UnloadableError(problem)

    def _load(
        self, source: bytes, weights: Mapping[str, ir.TensorProtocol], lean: bool, levels: Sequence[Level]
    ) -> None:
        for level in levels:
            settings = Settings(
                self._target.session_providers(),
                level=level,
                lean=lean,
                libraries=libraries(),
                runner=self._target.runner_file,
                folder=zeros_folder(),
            )
            try:
                opened(source, weights, settings, isolated=True)
            except ExpansionError:
                return  # a report says so (`ortfuse.runtime.function_expansion_limit.not_loadable`)
            except CrashError as error:
                self._problem = f"{error}{_WITH[level]}"
            except Exception as error:
                self._problem = f"ONNX Runtime refuses the model{_WITH[level]}: {shortened(error)}"
            if self._problem:
                return


def _cheap(nodes: int) -> Sequence[Level]:
    return LEVELS if nodes < _MANY else LEVELS[:1]
