"""Replacement for the `ORTOptimizer` of Optimum: the same calls, the same files, other rewrites.

    from ortfuse.interop.optimum import ORTOptimizer

    optimizer = ORTOptimizer.from_pretrained("exported_model")
    optimizer.optimize(save_dir="optimised_model")

`optimum.onnxruntime.ORTModelFor...` load the result, and hand over their own models. Optimum itself is not needed for folders.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ortfuse.api.optimize import optimize
from ortfuse.api.result import Result
from ortfuse.errors import ModelFileError, OptionError
from ortfuse.io.load_and_save import load
from ortfuse.options import Options

MODEL_FILE = "model.onnx"
"""The name that Optimum gives to a model that is one file."""

_WEIGHTS = (".onnx", ".onnx_data", ".onnx.data", ".data")
"""How the names of models and their data end; every other file of a folder goes along with the result."""

_PARTS = ("encoder", "decoder", "decoder_with_past", "unet", "transformer", "text_encoder", "text_encoder_2",
          "text_encoder_3", "vae_encoder", "vae_decoder")  # fmt: skip
"""The attributes in which models of several sessions keep them."""

_READ = frozenset({"optimization_level", "enable_gelu_approximation", "enable_transformers_specific_optimizations"})
"""The fields taken from an `OptimizationConfig`."""


class ORTOptimizer:
    """Optimise the models of a folder, or of an `ORTModel`, for ONNX Runtime on the CPU.

    Attributes:
        onnx_model_path: The model files.
        results: What was done to each, by the name of the file that was written.
    """

    def __init__(self, onnx_model_path: Sequence[str | os.PathLike[str]], config: Any = None, **ignored: Any) -> None:
        """Take the paths of models.

        Args:
            onnx_model_path: The paths.
            config: The configuration of the model, as Optimum has it; not needed, since the graph is read.
            **ignored: What else Optimum's class takes.
        """
        self.onnx_model_path = [Path(path) for path in onnx_model_path]
        self.config = config
        self.results: dict[str, Result] = {}

    @classmethod
    def from_pretrained(
        cls, model_or_path: str | os.PathLike[str] | Any, file_names: Sequence[str] | None = None
    ) -> ORTOptimizer:
        """Take the models of a folder or of an `ORTModel`.

        Args:
            model_or_path: A folder, or an object with sessions as Optimum's `ORTModel`s have them.
            file_names: The names of the models in the folder; by default `model.onnx`, or all if there is none.

        Raises:
            ModelFileError: There is no such folder, or no model in it.
        """
        if not isinstance(model_or_path, str | os.PathLike):
            return cls(_paths_of(model_or_path), getattr(model_or_path, "config", None))
        folder = Path(model_or_path)
        if not folder.is_dir():
            raise ModelFileError(f"{folder}: there is no such folder")
        if file_names is None:
            every = sorted(path.name for path in folder.glob("*.onnx"))
            file_names = [MODEL_FILE] if MODEL_FILE in every else every
        if not file_names:
            raise ModelFileError(f"{folder}: there is no .onnx file in it; export the model first")
        return cls([folder / name for name in file_names])

    def optimize(
        self,
        optimization_config: Any = None,
        save_dir: str | os.PathLike[str] = ".",
        file_suffix: str | None = "optimized",
        use_external_data_format: bool | None = None,
        one_external_file: bool = True,
    ) -> Path:
        """Write the optimised models, and the other files of their folder, to `save_dir`.

        Args:
            optimization_config: `ortfuse.Options`, or an `OptimizationConfig` of Optimum, of which the level and the
                approximation of GELU are read; `None` for the defaults of ortfuse.
            save_dir: The folder to write to.
            file_suffix: What the names of the models get behind an underscore; nothing if it is empty.
            use_external_data_format: Ignored: weights go to a file of their own where the format asks for it.
            one_external_file: Ignored: it is always one.

        Returns:
            The folder.

        Raises:
            OptionError: The configuration asks for something that ortfuse does not do.
            OrtfuseError: A model cannot be used or written.
        """
        options, target = _options(optimization_config), Path(save_dir)
        target.mkdir(parents=True, exist_ok=True)
        for path in self.onnx_model_path:
            name = f"{path.stem}_{file_suffix}{path.suffix}" if file_suffix else path.name
            self.results[name] = optimize(path, options.with_(output=target / name))
        _copy_rest({path.parent for path in self.onnx_model_path}, target)
        return target

    @staticmethod
    def get_nodes_number_difference(
        onnx_model_path: str | os.PathLike[str], onnx_optimized_model_path: str | os.PathLike[str]
    ) -> int:
        """The number of nodes that the second model has less."""
        return _operators(onnx_model_path).total() - _operators(onnx_optimized_model_path).total()

    @staticmethod
    def get_operators_difference(
        onnx_model_path: str | os.PathLike[str], onnx_optimized_model_path: str | os.PathLike[str]
    ) -> dict[str, int]:
        """The number of nodes of each operator that the second model has less; only operators whose number differs."""
        before, after = _operators(onnx_model_path), _operators(onnx_optimized_model_path)
        return {name: before[name] - after[name] for name in {*before, *after} if before[name] != after[name]}


def _paths_of(model: Any) -> list[Path]:
    """The files of the sessions of a model.

    Raises:
        ModelFileError: It does not tell where they are.
    """
    own = getattr(model, "path", None)
    parts = [getattr(getattr(model, name, None), "path", None) for name in _PARTS]
    found = dict.fromkeys(Path(path) for path in parts if path) or dict.fromkeys([Path(own)] if own else [])
    if not found:
        raise ModelFileError(f"{type(model).__name__} does not tell where its models are; give the folder")
    return list(found)


def _options(config: Any) -> Options:
    """The options that a configuration stands for.

    Raises:
        OptionError: It asks for something that ortfuse does not do.
    """
    if config is None or isinstance(config, Options):
        return config or Options()
    changed = dict(_changed(config))
    if unknown := [f"{name}={value}" for name, value in changed.items() if name not in _READ]:
        raise OptionError(
            "optimization_config",
            f"{', '.join(unknown)} means nothing to ortfuse; give ortfuse.Options (force={{'gelu': 'none'}} leaves a family as "
            "it is), or ortfuse.convert for half precision",
        )
    plain = getattr(config, "optimization_level", 2) <= 1
    specific = getattr(config, "enable_transformers_specific_optimizations", True)
    approximate = bool(getattr(config, "enable_gelu_approximation", False))
    return Options(level="basic" if plain and not specific else None, approximate=approximate)


def _changed(config: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a configuration that differ from their defaults."""
    if not is_dataclass(config) or isinstance(config, type):
        raise OptionError("optimization_config", f"write ortfuse.Options, not a {type(config).__name__}")
    kind: Any = type(config)
    usual = kind()
    for one in fields(kind):
        value = getattr(config, one.name)
        if value != getattr(usual, one.name):
            yield one.name, value


def _copy_rest(folders: set[Path], target: Path) -> None:
    """Copy what belongs to the models: configuration, tokeniser, preprocessor."""
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_file() and not path.name.endswith(_WEIGHTS) and folder.resolve() != target.resolve():
                shutil.copy2(path, target / path.name)


def _operators(path: str | os.PathLike[str]) -> Counter[str]:
    return Counter(node.op_type for node in load(path).graph.all_nodes())
