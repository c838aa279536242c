"""Time both sides of a rewrite at its site, with its own weights and sizes.

Results are cached in a file, so that another model with the same operators at the same sizes costs nothing.
"""

from __future__ import annotations

import hashlib
import os
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime
import platformdirs

from ortfuse.errors import CrashError, OrtfuseError, VerificationError
from ortfuse.ir.dims import Dim, evaluate, symbols
from ortfuse.ir.edit import Edit
from ortfuse.ir.model_structure_key import content_of
from ortfuse.runtime.bench.blocked_convolution import runs_in_blocks
from ortfuse.runtime.bench.rewrite_sides_in_turns import ratios
from ortfuse.runtime.bench.typical_benchmark_inputs import LEADING, OTHERS, check_sizes
from ortfuse.runtime.current_execution_target import execution_target
from ortfuse.runtime.inputs.generation import attempt
from ortfuse.runtime.inputs.random_inputs import input_specs
from ortfuse.runtime.inputs.sizes import Sizes, open_dims, uniform
from ortfuse.runtime.rewrite_sides import Sides, sides
from ortfuse.runtime.session import Session
from ortfuse.targets import Estimate
from ortfuse.targets.measurement_file import keep, kept
from ortfuse.targets.processor import processor_in_full
from ortfuse.targets.rule_speedups import sizes_text

ROUNDS = 25
"""How often each side is run, interleaved."""


def default_cache() -> Path:
    """The file in the user's cache folder that stores measurements."""
    return Path(platformdirs.user_cache_dir("ortfuse")) / "costs.json"


@dataclass
class SiteMeter:
    """Measure each kind of site once; sites of one kind have the same operators, attributes, types and sizes.

    Attributes:
        sizes: Sizes of the model's open dimensions, by symbol; a missing one is 1 if it leads an input of the site, and
            128 otherwise.
        threads: Threads per operator; 0 leaves the choice to the runtime.
        cache: The file to keep measurements in, `None` to keep none.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    threads: int = 0
    cache: Path | None = field(default_factory=lambda: default_cache())
    _known: dict[str, float | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._known |= self._stored()

    @classmethod
    def for_model(cls, model: ir.Model, sizes: Sizes, **options: Any) -> SiteMeter:
        """A meter for a model with the usual sizes of open dimensions, except those given by name."""
        if sizes:
            check_sizes(model, sizes)
        try:
            dims = open_dims(input_specs(model))
        except VerificationError:
            dims = []  # inputs of unknown rank or sequence type: each site supplies sizes of its own
        given = {dim.symbol: sizes[dim.label] for dim in dims if dim.label in sizes}
        return cls(uniform(dims, LEADING, OTHERS) | given, **options)

    def measure(self, site: Edit) -> Estimate | None:
        """The speedup of the new nodes of a site over the old ones; `None` if they cannot be run."""
        try:
            both = sides(site)
        except OrtfuseError:
            return None
        bound = {**uniform(open_dims(both.inputs), LEADING, OTHERS), **self.sizes}
        blocked = _in_blocks(site, both)
        key = self._key(site, both, bound, blocked)
        if key not in self._known:
            self._known[key] = self._speedup(both, bound, blocked)
            self._store()
        speedup = self._known[key]
        if speedup is None:
            return None
        source = "measured here" if speedup else "the runtime crashes on it"
        return Estimate(speedup, sizes_text(_shapes(site, bound)), source)

    def _speedup(self, both: Sides, sizes: Sizes, blocked: Collection[str]) -> float | None:
        """The speedup of the new nodes; 0 if they crash the runtime, `None` if one of the sides cannot be run."""
        try:
            ran, _ = attempt(Session(both.before, threads=self.threads), both.inputs, sizes, 0, sizes)
            if ran is None:
                return None
            try:
                Session(both.after, threads=self.threads).run(ran[1])
            except CrashError:
                return 0.0
            found = ratios(
                (both.before, both.after), ran[1], ran[2], lambda some, _: len(some) >= ROUNDS,
                threads=self.threads, blocked=blocked,
            )  # fmt: skip
        except (OrtfuseError, MemoryError):
            return None
        return round(statistics.median(found), 3)

    def _key(self, site: Edit, both: Sides, sizes: Sizes, blocked: Collection[str]) -> str:
        """A cache key made of everything that the speedup depends on."""
        content = [
            content_of(both.before),
            content_of(both.after),
            sorted(sizes.items()),
            self.threads,
            os.cpu_count(),
            processor_in_full(),
            *([sorted(blocked)] if blocked else []),
        ]
        digest = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
        return f"{onnxruntime.__version__} {site.rule.name} {sizes_text(_shapes(site, sizes))} {digest}"

    def _stored(self) -> dict[str, float | None]:
        found = {} if self.cache is None else kept(self.cache)
        return {key: value for key, value in found.items() if value is None or isinstance(value, int | float)}

    def _store(self) -> None:
        if self.cache is not None and not keep(self.cache, self._known):
            self.cache = None  # it cannot be written: keep the measurements for this run only


def _shapes(site: Edit, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The shapes of the values a rule captured at a site, as far as these sizes determine them; constants are left out."""
    found: dict[str, tuple[int, ...]] = {}
    for name in site.rule.test.typical[0] if site.rule.test.typical else ():
        value = site.match.get(name)
        shape = site.facts.shape(value) if isinstance(value, ir.Value) else None
        if shape is None:
            continue
        numbers = [_size(dim, sizes) for dim in shape]
        known = tuple(number for number in numbers if number is not None)
        if len(known) == len(numbers) and (not found or sum(number > 1 for number in known) > 1):
            found[name] = known
    return found


def _size(dim: Any, sizes: Sizes) -> int | None:
    if not isinstance(dim, Dim):
        return int(dim)
    return int(evaluate(dim, sizes)) if symbols(dim) <= set(sizes) else None


def _in_blocks(site: Edit, both: Sides) -> set[str]:
    """The inputs and outputs of a site that the runtime has in its blocked layout, if one of its sides computes in that."""
    layout = execution_target().blocked_layout
    if layout is None or not (runs_in_blocks(both.before) or runs_in_blocks(both.after)):
        return set()
    given = zip(both.inputs, both.border, strict=True)
    inputs = {spec.name for spec, value in given if layout.unless_blocked(value, site.facts) is None}
    made = zip(both.before.graph.outputs, site.outputs, strict=True)
    return inputs | {result.name or "" for result, (old, _) in made if layout.reads_blocks(old, site.facts)}
