"""Resolve the target that a user names: a short name, a provider, a folder, a kernel table, or an object."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ortfuse.errors import TargetError
from ortfuse.targets.joint_target import JointTarget
from ortfuse.targets.registry import default_spec, load_target
from ortfuse.targets.release_kernel_tables import table_of_release
from ortfuse.targets.target import Target
from ortfuse.targets.target_spec import TargetSpec

TABLE = ".json"
"""The file name extension of a kernel table."""


Named: TypeAlias = "Target | TargetSpec | str | os.PathLike[str] | None"
"""What names a target."""


@dataclass(frozen=True)
class Member:
    """One of several targets that are named together.

    Attributes:
        label: The words for it in a file's name: its short name, and the release after a hyphen.
        target: What names the target.
        release: The release of the runtime; `None` for the installed one.
    """

    label: str
    target: Named
    release: str | None


def members(named: Named, runtime: str | None = None) -> Sequence[Member]:
    """Return each of the targets and releases that texts with commas list, as `resolve_target` takes them.

    Raises:
        TargetError: The text lists none.
    """
    releases = [None] if runtime is None else [one.strip() for one in runtime.split(",")]
    return [
        Member("-".join(filter(None, [_label(one), release])), one, release)
        for one, release in itertools.product(_listed(named), releases)
    ]


def _label(named: Named) -> str:
    if isinstance(named, Target):
        return named.spec.name
    if isinstance(named, TargetSpec):
        return named.name
    return default_spec().name if named is None else Path(named).stem


def resolve_target(
    named: Named,
    *,
    runtime: str | None = None,
    max_opset: int | None = None,
    threads: int = 0,
) -> Target:
    """Return the target that is meant.

    Args:
        named: A target, a declaration, a short name, a provider, the path of a target's folder (as text with a `/`), or that of
            a kernel table (`.json`); `None` is the default target. Several texts with commas between them stand for all of these.
        runtime: The release of ONNX Runtime, such as `1.20`, or several with commas; by default the installed one.
        max_opset: The highest ai.onnx opset that a result may use.
        threads: Threads per operator at which costs are looked up; 0 leaves the number to the runtime.

    Raises:
        TargetError: There is no such target or release, or its folder or table cannot be used.
    """
    every = members(named, runtime)
    if len(every) > 1:
        return JointTarget(
            [resolve_target(one.target, runtime=one.release, max_opset=max_opset, threads=threads) for one in every]
        )
    named = every[0].target
    if runtime is not None:
        return _of_release(named, runtime, max_opset, threads)
    if isinstance(named, Target):
        return named if max_opset is None or max_opset >= named.max_opset else named.limited(max_opset)
    if named is None or isinstance(named, TargetSpec):
        return Target(named, max_opset=max_opset, threads=threads)
    text = os.fspath(named)
    if _is_table(text):
        return Target.from_table(text, max_opset=max_opset)
    if isinstance(named, os.PathLike) or _is_path(text):
        return Target(load_target(text), max_opset=max_opset, threads=threads)
    return Target(text, max_opset=max_opset, threads=threads)


def _listed(named: Named) -> Sequence[Named]:
    """The targets that a text lists with commas, each once; a path that exists is one."""
    if not isinstance(named, str) or "," not in named or os.path.exists(named):  # noqa: PTH110 - a text as it was given
        return [named]
    found = list(dict.fromkeys(one.strip() for one in named.split(",") if one.strip()))
    if not found:
        raise TargetError(f"--target {named}: names no target; `ortfuse targets` lists them")
    return found


def _of_release(named: Named, runtime: str, max_opset: int | None, threads: int) -> Target:
    """A target as a release of the runtime has it."""
    if isinstance(named, Target) or (named is not None and not isinstance(named, TargetSpec) and _is_table(named)):
        raise TargetError(
            f"--runtime {runtime}: the target states the kernels of one build already; name one of the two"
        )
    spec = named if isinstance(named, TargetSpec) else resolve_target(named).spec
    return Target(max_opset=max_opset, table=table_of_release(spec, runtime), threads=threads)


def _is_table(named: str | os.PathLike[str]) -> bool:
    return os.fspath(named).endswith(TABLE)


def _is_path(text: str) -> bool:
    """Whether a text means a folder, whose code is run: never a bare name, of which a folder may lie beside a model."""
    return any(separator in text for separator in (os.sep, os.altsep) if separator)
