"""Generated TypedDicts of the options as keyword arguments; edit `ortfuse.options.options` instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from ortfuse.options.type_aliases import (
    FixedLike,
    InputsLike,
    Level,
    PathLike,
    PatternsLike,
    PipelineLike,
    Purpose,
    RangeLike,
    TargetLike,
    Verification,
)

if TYPE_CHECKING:
    from ortfuse.rewrite import Debugging


class PipelineOptions(TypedDict, total=False):
    """The options that say what is rewritten."""

    passes: PipelineLike
    level: Level | None
    purpose: Purpose
    patterns: PatternsLike
    lists: PathLike | Sequence[PathLike]
    target: TargetLike | None
    runtime: str | None
    force: Mapping[str, str]
    approximate: bool
    padding_free: bool
    max_opset: int | None
    max_growth: int | None
    custom_ops: PathLike | Sequence[PathLike]
    assume: str | Sequence[str]
    same: Mapping[str, str]
    size_range: Mapping[str, RangeLike]
    fix: Mapping[str, FixedLike]
    keep_outputs: str | Sequence[str]
    drop_inputs: bool
    check_user: bool | None
    debugging: Debugging | None


class ComparisonOptions(TypedDict, total=False):
    """The options that say how models are compared."""

    target: TargetLike | None
    custom_ops: PathLike | Sequence[PathLike]
    verify_budget: float
    tolerance: float | None
    inputs: InputsLike | None
    preprocess: PathLike | None
    sizes: Mapping[str, int]
    seed: int


class BenchOptions(TypedDict, total=False):
    """The options that say how models are measured."""

    target: TargetLike | None
    custom_ops: PathLike | Sequence[PathLike]
    rounds: int
    bench_budget: float | None
    threads: int
    inputs: InputsLike | None
    preprocess: PathLike | None
    sizes: Mapping[str, int]
    fill: float | None
    seed: int


class BisectOptions(TypedDict, total=False):
    """The options that say what is rewritten, and how the results are compared."""

    passes: PipelineLike
    level: Level | None
    purpose: Purpose
    patterns: PatternsLike
    lists: PathLike | Sequence[PathLike]
    target: TargetLike | None
    force: Mapping[str, str]
    approximate: bool
    max_opset: int | None
    max_growth: int | None
    custom_ops: PathLike | Sequence[PathLike]
    assume: str | Sequence[str]
    same: Mapping[str, str]
    size_range: Mapping[str, RangeLike]
    fix: Mapping[str, FixedLike]
    keep_outputs: str | Sequence[str]
    drop_inputs: bool
    tolerance: float | None
    inputs: InputsLike | None
    preprocess: PathLike | None
    seed: int
    debugging: Debugging | None


class AllOptions(TypedDict, total=False):
    """All options."""

    output: PathLike | None
    link: bool
    external_data: bool
    loaded: bool
    explain: bool | Sequence[str]
    passes: PipelineLike
    level: Level | None
    purpose: Purpose
    patterns: PatternsLike
    lists: PathLike | Sequence[PathLike]
    target: TargetLike | None
    runtime: str | None
    force: Mapping[str, str]
    measure: bool
    approximate: bool
    inference: bool
    padding_free: bool
    max_opset: int | None
    max_growth: int | None
    custom_ops: PathLike | Sequence[PathLike]
    assume: str | Sequence[str]
    same: Mapping[str, str]
    size_range: Mapping[str, RangeLike]
    fix: Mapping[str, FixedLike]
    keep_outputs: str | Sequence[str]
    drop_inputs: bool
    verify: Verification | bool | None
    verify_budget: float
    check_user: bool | None
    tolerance: float | None
    bench: bool
    fastest: bool
    rounds: int
    bench_budget: float | None
    threads: int
    inputs: InputsLike | None
    preprocess: PathLike | None
    sizes: Mapping[str, int]
    fill: float | None
    seed: int
    debugging: Debugging | None
