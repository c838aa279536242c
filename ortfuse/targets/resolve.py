"""Resolve the target that a user names: a short name, a provider, a folder, a kernel table, or an object."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

from ortfuse.errors import TargetError
from ortfuse.targets.joint_target import JointTarget
from ortfuse.targets.registry import load_target
from ortfuse.targets.release_kernel_tables import table_of_release
from ortfuse.targets.target import Target
from ortfuse.targets.target_spec import TargetSpec

TABLE = ".json"
"""The file name extension of a kernel table."""


def resolve_target(
    named: Target | TargetSpec | str | os.PathLike[str] | None,
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
    releases = [None] if runtime is None else [one.strip() for one in runtime.split(",")]
    names = _listed(named)
    if len(names) * len(releases) > 1:
        members = itertools.product(names, releases)
        return JointTarget(
            [resolve_target(one, runtime=release, max_opset=max_opset, threads=threads) for one, release in members]
        )
    named = names[0]
    if runtime is not None:
        return _of_release(named, runtime, max_opset)
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


def _listed(
    named: Target | TargetSpec | str | os.PathLike[str] | None,
) -> Sequence[Target | TargetSpec | str | os.PathLike[str] | None]:
    """The targets that a text lists with commas, each once; a path that exists is one."""
    if not isinstance(named, str) or "," not in named or os.path.exists(named):  # noqa: PTH110 - a text as it was given
        return [named]
    found = list(dict.fromkeys(one.strip() for one in named.split(",") if one.strip()))
    if not found:
        raise TargetError(f"--target {named}: names no target; `ortfuse targets` lists them")
    return found


def _of_release(
    named: Target | TargetSpec | str | os.PathLike[str] | None, runtime: str, max_opset: int | None
) -> Target:
    """A target as a release of the runtime has it."""
    if isinstance(named, Target) or (named is not None and not isinstance(named, TargetSpec) and _is_table(named)):
        raise TargetError(
            f"--runtime {runtime}: the target states the kernels of one build already; name one of the two"
        )
    spec = named if isinstance(named, TargetSpec) else resolve_target(named).spec
    return Target(max_opset=max_opset, table=table_of_release(spec, runtime))


def _is_table(named: str | os.PathLike[str]) -> bool:
    return os.fspath(named).endswith(TABLE)


def _is_path(text: str) -> bool:
    """Whether a text means a folder, whose code is run: never a bare name, of which a folder may lie beside a model."""
    return any(separator in text for separator in (os.sep, os.altsep) if separator)
