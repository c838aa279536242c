"""The variants of a model that the tuner chooses from: results of several pass lists, pins and precisions, each verified."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ortfuse.api import optimize
from ortfuse.errors import OrtfuseError
from ortfuse.model.io import load, save
from ortfuse.options import Options
from ortfuse.quantized import quantize
from ortfuse.result import Result
from ortfuse.tuning.space import Choice, Space

ORIGINAL = "original"
QUANTIZED = "quantized"
LISTS = ("auto", "all", "extended", "basic")
"""The pass lists and levels that are tried."""


@dataclass(frozen=True)
class Variant:
    """A model that was made, verified and written.

    Attributes:
        name: Its name in the space.
        path: Its file.
        options: How it was made.
        failure: Why it cannot be used; empty if it can.
    """

    name: str
    path: Path
    options: Options
    failure: str = ""


@dataclass
class Variants:
    """Makes variants when they are first asked for.

    Attributes:
        original: The model file.
        options: How to optimise, with the inputs to verify on.
        folder: Where they are written.
        max_error: The error that lower precision may make; `None` for none.
        progress: Called with short messages.
    """

    original: Path
    options: Options
    folder: Path
    max_error: float | None = None
    progress: Callable[[str], None] = lambda text: None
    _made: dict[tuple[str, tuple[tuple[str, str], ...]], Variant] = field(default_factory=dict, init=False)
    _by_content: dict[str, Path] = field(default_factory=dict, init=False)
    _results: dict[str, Result] = field(default_factory=dict, init=False)

    def names(self) -> list[str]:
        """The variants that differ from each other, the usual one first and the original last."""
        found = dict[Path, str]()
        for name in LISTS:
            variant = self.get(name)
            if not variant.failure:
                found.setdefault(variant.path, name)
        names = list(found.values())
        if self.max_error is not None and not self.get(QUANTIZED).failure:
            names.insert(0, QUANTIZED)
        return [*names, ORIGINAL]

    def alternatives(self) -> dict[str, list[str]]:
        """The operators that the sites of each family may become by cost, where there are several, from the usual variant."""
        result = self._results.get("auto")
        found: dict[str, dict[str, None]] = {}
        for choice in result.report.choices if result is not None else ():
            if "," not in choice.makes and not choice.makes.isspace():
                found.setdefault(choice.rule.partition(".")[0], {})[choice.makes] = None
        return {family: [*operators, "none"] for family, operators in found.items()}

    def of(self, space: Space, choice: Choice) -> Variant:
        """The variant of a choice."""
        return self.get(str(choice["model"]), space.pins(choice))

    def get(self, name: str, pins: Mapping[str, str] | None = None) -> Variant:
        """A variant by name, with pins of operators."""
        pins = {} if name in (ORIGINAL, QUANTIZED) else dict(pins or {})
        key = name, tuple(sorted(pins.items()))
        if key not in self._made:
            self.progress(f"making the variant {name}")
            self._made[key] = self._make(name, pins)
        return self._made[key]

    def _make(self, name: str, pins: Mapping[str, str]) -> Variant:
        if name == ORIGINAL:
            return Variant(name, self.original, replace(self.options, passes="disabled", level=None))
        target = self.folder / f"{len(self._made)}.onnx"
        options = self.options.with_(pins={**self.options.pins, **pins})
        try:
            if name == QUANTIZED:
                return self._quantized(target, options)
            options = options.with_(passes=name) if name != "auto" else options
            result = optimize(self.original, options, verify="whole", output=target)
        except OrtfuseError as error:
            return Variant(name, self.original, options, str(error))
        if not pins:
            self._results[name] = result
        return Variant(name, self._unique(target), options)

    def _quantized(self, target: Path, options: Options) -> Variant:
        assert self.max_error is not None
        made = quantize(self.original, options, max_error=self.max_error, output=target, progress=self.progress)
        if not made.outcome.lowered:
            return Variant(QUANTIZED, self.original, options, made.outcome.reason)
        return Variant(QUANTIZED, target, options)

    def _unique(self, path: Path) -> Path:
        """The first file with the same content, so that equal models are one variant."""
        digest = hashlib.sha256(path.read_bytes())
        data = path.with_name(path.name + ".data")
        if data.exists():
            digest.update(data.read_bytes())
        return self._by_content.setdefault(digest.hexdigest(), path)


def write(variant: Variant, target: Path, *, link: bool, metadata: Mapping[str, str]) -> None:
    """Write a variant to its final place, with metadata.

    Raises:
        OutputError: It cannot be written.
    """
    model: Any = load(variant.path)
    model.metadata_props.update(metadata)
    save(model, target, link=link)
