"""Variants of a model that the tuner chooses from: results of several pass lists, forced choices and precisions.

Each is made when it is first asked for, pass lists that come to the same passes once, and only the one that is taken is verified
in full: every trial compares outputs.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ortfuse.api.compare import verify
from ortfuse.api.optimize import optimize
from ortfuse.api.quantize import quantize
from ortfuse.api.result import Result
from ortfuse.errors import OrtfuseError
from ortfuse.io.load_and_save import load, save
from ortfuse.options import Options
from ortfuse.pipeline.manager import PassManager
from ortfuse.runtime.session_settings import SessionConfig
from ortfuse.runtime.session_settings.settings_in_model import KEY
from ortfuse.tuning.search_space import MODEL, ORIGINAL, QUANTIZED, Choice, Space

USUAL = "auto"
"""The pass list of the options, by default the one that the model's content chooses."""

LISTS = (USUAL, "all", "extended", "basic")
"""The pass lists and levels that are tried."""


WRITING_TIMES = 4
"""Writing a result takes about as many times as long as reading a file and taking its digest."""

SEARCH_TIMES, SEARCH_RUNS = 4, 100
"""A search for lower precision takes about as many times as long as making the usual model, and as many runs of the original at
least: it makes that model and some more, and runs the original and one choice on all of its inputs. With less it is not begun."""


@dataclass(frozen=True)
class Variant:
    """A model that was made and written.

    Attributes:
        name: Its name in the space.
        path: Its file; that of an earlier variant if both are the same.
        options: How it was made.
        content: A digest of the file and its data.
        failure: Why it cannot be used; empty if it can.
    """

    name: str
    path: Path
    options: Options
    content: str = ""
    failure: str = ""


@dataclass
class Variants:
    """Make variants when they are first asked for.

    Attributes:
        original: The model file.
        options: How to optimise, with the inputs to verify on, or the sizes of open dimensions for generated ones.
        folder: Where they are written.
        max_error: The error that lower precision may make; `None` for none.
        budget: The seconds that the search for lower precision may take; `None` for no limit.
        progress: Called with short messages.
        clock: Seconds that pass.
        run: About how long a run of the original takes.
        writing: About how long it takes to write a result.
        searching: What the search for lower precision took.
    """

    original: Path
    options: Options
    folder: Path
    max_error: float | None = None
    budget: float | None = None
    progress: Callable[[str], None] = lambda text: None
    clock: Callable[[], float] = time.monotonic
    run: float = field(default=0.0, init=False)
    writing: float = field(default=0.0, init=False)
    searching: float = field(default=0.0, init=False)
    _made: dict[tuple[str, tuple[tuple[str, str], ...]], Variant] = field(default_factory=dict, init=False)
    _by_content: dict[str, Path] = field(default_factory=dict, init=False)
    _verified: dict[Path, str] = field(default_factory=dict, init=False)
    _usual: Result | None = field(default=None, init=False)
    _seconds: float = field(default=0.0, init=False)

    def names(self) -> list[str]:
        """The names of the variants, the usual one first; of pass lists that come to the same passes the first.

        Raises:
            PipelineError: The pipeline in the options is none.
        """
        model = load(self.original)
        tried = LISTS if self.options.purpose == "execution" else (USUAL,)
        lists = {PassManager(self._options_of(name)).pipeline_for(model): name for name in reversed(tried)}
        return [*reversed(lists.values()), ORIGINAL, *([] if self.max_error is None else [QUANTIZED])]

    def seconds(self, space: Space, choice: Choice) -> float:
        """About how long it takes to make the model of a choice: as long as the usual one, but for lower precision; 0 if it is
        there."""
        name = str(choice[MODEL])
        forced = {} if name == QUANTIZED else space.forced(choice)
        if name == ORIGINAL or _key(name, forced) in self._made:
            return 0.0
        return self.least_search if name == QUANTIZED else self._seconds

    @property
    def least_search(self) -> float:
        """About how long a search for lower precision takes at least."""
        return SEARCH_TIMES * self._seconds + SEARCH_RUNS * self.run

    def recommended(self) -> SessionConfig:
        """The settings that are recommended for sessions of the usual variant."""
        self.get(USUAL)
        return SessionConfig() if self._usual is None else self._usual.session

    def alternatives(self) -> dict[str, list[str]]:
        """The operators that the sites of each family may become by cost, where there are several, from the usual variant."""
        self.get(USUAL)
        found: dict[str, dict[str, None]] = {}
        for choice in self._usual.report.choices if self._usual is not None else ():
            if "," not in choice.produces and not choice.produces.isspace():
                found.setdefault(choice.rule.partition(".")[0], {})[choice.produces] = None
        return {family: [*operators, "none"] for family, operators in found.items()}

    def of(self, space: Space, choice: Choice) -> Variant:
        """The variant of a choice."""
        return self.get(str(choice[MODEL]), space.forced(choice))

    def get(self, name: str, forced: Mapping[str, str] | None = None) -> Variant:
        """A variant by name, with forced choices of operators."""
        forced = {} if name in (ORIGINAL, QUANTIZED) else dict(forced or {})
        key = _key(name, forced)
        if key not in self._made:
            self.progress(f"making the variant {name}")
            started = self.clock()
            self._made[key] = self._make(name, forced)
            seconds = self.clock() - started
            if name == USUAL and not forced:
                self._seconds = seconds
            elif name == QUANTIZED:
                self.searching = seconds
        return self._made[key]

    def refused(self, variant: Variant) -> str:
        """Verify a variant, once; returns why it cannot be taken, which is empty if it can.

        A variant in lower precision was held to its bound when it was made, on inputs of its own.
        """
        if variant.name in (ORIGINAL, QUANTIZED):
            return ""
        if variant.path not in self._verified:
            self.progress(f"verifying the variant {variant.name}")
            self._verified[variant.path] = self._refusal(variant)
        return self._verified[variant.path]

    def is_verified(self, variant: Variant) -> bool:
        """Whether `refused` would answer at once."""
        return variant.name in (ORIGINAL, QUANTIZED) or variant.path in self._verified

    def _refusal(self, variant: Variant) -> str:
        options = self.options
        try:
            verdict = verify(
                self.original, variant.path, inputs=options.inputs, seed=options.seed, tolerance=options.tolerance
            )
        except OrtfuseError as error:
            return str(error)
        return "" if verdict.ok else f"the outputs of the variant {variant.name} differ from the original's"

    def _make(self, name: str, forced: Mapping[str, str]) -> Variant:
        if name == ORIGINAL:
            options = replace(self.options, passes="disabled", level=None)
            return Variant(name, self.original, options, _digest(self.original))
        target = self.folder / f"{len(self._made)}.onnx"
        options = self._options_of(name)
        options = options.with_(force={**options.force, **forced})
        try:
            if name == QUANTIZED:
                return self._quantized(target, options)
            plain = options.with_(inputs=None, sizes={}, bench=False)
            result = optimize(self.original, plain, output=target, verify=None, loaded=False)
        except OrtfuseError as error:
            return Variant(name, self.original, options, failure=str(error))
        if name == USUAL and not forced:
            self._usual = result
        started = self.clock()
        content = _digest(target)
        self.writing = WRITING_TIMES * (self.clock() - started)
        return Variant(name, self._by_content.setdefault(content, target), options, content)

    def _options_of(self, name: str) -> Options:
        return self.options if name in (USUAL, QUANTIZED) else self.options.with_(passes=name, level=None)

    def _quantized(self, target: Path, options: Options) -> Variant:
        assert self.max_error is not None
        made = quantize(
            self.original,
            options,
            max_error=self.max_error,
            budget=self.budget,
            output=target,
            progress=self.progress,
        )
        if not made.outcome.lowered:
            return Variant(QUANTIZED, self.original, options, failure=made.outcome.reason)
        return Variant(QUANTIZED, target, options, _digest(target))


def _key(name: str, forced: Mapping[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted(forced.items()))


def _digest(path: Path) -> str:
    """The key of a model: equal models are one variant."""
    digest = hashlib.sha256(path.read_bytes())
    data = path.with_name(path.name + ".data")
    if data.exists():
        digest.update(data.read_bytes())
    return digest.hexdigest()[:24]


def write(variant: Variant, target: Path, *, link: bool, metadata: Mapping[str, str]) -> None:
    """Write a variant to its final place, with metadata.

    Raises:
        OutputError: It cannot be written.
    """
    model: Any = load(variant.path)
    model.metadata_props.pop(KEY, None)  # what was recommended when it was made, and not measured
    model.metadata_props.update(metadata)
    save(model, target, link=link)
