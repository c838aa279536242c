"""Class `TargetSpec`: constraints, known bugs, layouts and settings of an execution provider.

Each folder of a target has an `__init__.py` with `TARGET = TargetSpec(...)`, and beside it, as far as there are any:

- `kernels.json.gz` or `kernels.json`: a kernel table, as `Target.to_table` writes it;
- `releases.json.gz`: the kernel tables of several releases of the runtime (`ortfuse.targets.release_kernel_tables`);
- `costs.json`: the measured speedups of rules (`ortfuse.targets.rule_speedups`);
- `decompositions/`: rule files for this target alone.

A field that is left out states nothing, and no rule that only trades speed on another target is applied.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import TargetError
from ortfuse.ir.refusal import Refusal
from ortfuse.targets.kernel_constraints import Limits
from ortfuse.targets.known_bugs import KnownBug

DECOMPOSITIONS = "decompositions"
"""The folder of a target's own rule files."""


def release_number(release: str) -> tuple[int, ...]:
    """Return a release such as `1.20` as numbers, so that releases can be compared."""
    return tuple(int(part) for part in release.split("."))


def release_of(runtime: str) -> tuple[int, ...]:
    """Return the release of a build such as `onnxruntime 1.20.1` as numbers; one above all others if its name says none."""
    found = re.search(r"(\d+)\.(\d+)", runtime)
    return (sys.maxsize,) if found is None else (int(found[1]), int(found[2]))


class BlockedLayout(Protocol):
    """A layout of images in blocks of channels, in which the kernels of a target compute convolutions."""

    @property
    def LARGEST_BLOCK(self) -> int:  # noqa: N802 - a module has it as a constant
        """The most channels of a block."""

    def unless_blocked(self, value: ir.Value, facts: Facts) -> Refusal | None:
        """Refuse a value unless it is computed in blocks on any processor that has them."""

    def may_be_blocked(self, value: ir.Value, facts: Facts) -> bool:
        """Tell whether a value may be computed in blocks on some processor."""

    def leaves_blocks(self, value: ir.Value, facts: Facts, but: ir.Node | None) -> bool:
        """Tell whether a node other than `but` reads a value outside of the layout."""

    def reads_blocks(self, value: ir.Value, facts: Facts) -> bool:
        """Tell whether a node that computes in blocks reads a value."""

    def convolves_in_blocks(self, node: ir.Node, facts: Facts) -> bool:
        """Tell whether a convolution is computed in blocks of any size."""


@dataclass(frozen=True)
class ProviderOption:
    """An option of an execution provider that `ortfuse tune` searches.

    Attributes:
        values: Its values, the runtime's default first.
        operators: The operators of which a model has to have one for the option to matter; empty if it always may.
    """

    values: tuple[str, ...]
    operators: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetSpec:
    """The declaration of a target.

    Attributes:
        name: The short name, such as `cpu`: options, rule files and reports use it.
        provider: The name of the execution provider in ONNX Runtime.
        folder: The folder of the target; `None` for a provider that has none.
        is_default: Whether it is the target of models that name none.
        kernels: `installed` if the installed runtime is asked for its kernels, `stored` if the table of the folder says them; or
            a function of the provider that returns the `KernelTable`.
        constraints: Checks of inputs and attributes that the kernels refuse, besides the documented ones.
        former_constraints: Further checks that releases up to a named one need, such as `1.20`.
        known_bugs: Behaviours that deviate from the operator definitions.
        machines: The machines (`platform.machine()`) to which a known bug is bound; a bug that is not named is on all.
        bugs_since: The first release with a known bug, such as `1.28`; a bug that is not named is in all.
        bugs_until: The last release with a known bug; a bug that is not named is in all later ones.
        lowered_before: Operators of ai.onnx that are lowered for releases before a named one, although these have kernels,
            since the kernels compute something else than fusions take them to.
        fuses_itself: Whether the provider fuses the operators of ai.onnx itself: rules make none of `com.microsoft` then, unless
            they are forced, and none that they lower.
        orders_axes_itself: Whether the provider chooses the order of axes itself: the pass `layout` leaves Transposes where they
            are then.
        splits_channels_in_place: Whether a Split of the channels of images copies nothing where Concats read its parts, while a
            Slice does: the pass `slices_to_split` makes that of a Slice of an image that Concats read besides.
        sizes_on: The target that executes arithmetic of sizes and positions in int64, where this one has no kernels for it.
        decomposed: Operators without kernels that rules make of others without kernels, by domain and name, since decompositions
            take them away; where none does, the target in `sizes_on` executes them.
        half_in_float32: Whether an operator without a float16 kernel is executed in float32, between Casts.
        fast_transpose_axes: The most axes that the Transpose kernel moves at full speed; `None` if that is not known.
        slow_denormals: Whether numbers below the smallest normal one take the processor many times as long.
        plans_buffers_by_names: Whether an elementwise node is computed in the buffer of its operand if the declared sizes of both
            have the same names: names of sizes that a model computes are declared then.
        blocked_layout: The layout of images in blocks of channels; `None` if there is none.
        runs_on: The providers of a session that executes models for the target, the first one first. Another target's provider
            can stand in where this one is not installed. Empty if models cannot be executed here.
        needs: What a machine needs to execute models, in words, for a target that found in `runs_on` that it is not there.
        runner: The file in the folder that runs models for the target; empty if the Python package of the runtime does. It has a
            function `session_class(base)` (`ortfuse.runtime.session_subprocess.session_class`).
        session_settings: Settings of each session by the runtime's names.
        tuned_settings: The session settings that `ortfuse tune` searches, with their values, the runtime's default first.
        tuned_options: The options of its provider that `ortfuse tune` searches, by the runtime's names.
        accelerator: The device in the words of Olive.
        untried: Operators with kernels that no result was run with on a device, by domain and name: they are made only where
            `--force` asks for them.
        tried: How results were tried on it, in words; `never run here` where its facts are from tables and documentation alone.
    """

    name: str
    provider: str
    folder: Path | None = None
    is_default: bool = False
    kernels: Literal["installed", "stored"] | Callable[[str], Any] = "installed"
    constraints: Limits = field(default_factory=dict)
    former_constraints: Mapping[str, Limits] = field(default_factory=dict)
    known_bugs: frozenset[KnownBug] = frozenset()
    machines: Mapping[KnownBug, frozenset[str]] = field(default_factory=dict)
    bugs_since: Mapping[KnownBug, str] = field(default_factory=dict)
    bugs_until: Mapping[KnownBug, str] = field(default_factory=dict)
    lowered_before: Mapping[str, str] = field(default_factory=dict)
    fuses_itself: bool = False
    orders_axes_itself: bool = False
    splits_channels_in_place: bool = False
    sizes_on: str = ""
    decomposed: frozenset[tuple[str, str]] = frozenset()
    half_in_float32: bool = False
    fast_transpose_axes: int | None = None
    slow_denormals: bool = False
    plans_buffers_by_names: bool = False
    blocked_layout: BlockedLayout | None = None
    runs_on: tuple[str, ...] = ()
    needs: str = ""
    runner: str = ""
    session_settings: Mapping[str, Any] = field(default_factory=dict)
    tuned_settings: Mapping[str, tuple[bool | int | str, ...]] = field(default_factory=dict)
    tuned_options: Mapping[str, ProviderOption] = field(default_factory=dict)
    accelerator: str = ""
    untried: frozenset[tuple[str, str]] = frozenset()
    tried: str = ""

    def bugs_on(self, machine: str, release: tuple[int, ...]) -> frozenset[KnownBug]:
        """Return the known bugs of a release on a kind of machine, as `platform.machine` names it."""
        return frozenset(
            bug
            for bug in self.known_bugs
            if machine.lower() in self.machines.get(bug, {machine.lower()})
            and release >= release_number(self.bugs_since.get(bug, "0"))
            and (bug not in self.bugs_until or release <= release_number(self.bugs_until[bug]))
        )

    @property
    def table_file(self) -> Path | None:
        """The stored kernel table; `None` if the folder has none."""
        return self._file("kernels.json.gz") or self._file("kernels.json")

    @property
    def releases_file(self) -> Path | None:
        """The stored kernel tables of releases; `None` if the folder has none."""
        return self._file("releases.json.gz")

    @property
    def costs_file(self) -> Path | None:
        """The measured costs; `None` if the folder has none."""
        return self._file("costs.json")

    @property
    def runner_file(self) -> str:
        """The path of the file that runs models for the target; empty if the runtime's Python package does."""
        return str((self.folder or Path()) / self.runner) if self.runner else ""

    @property
    def decompositions(self) -> Path | None:
        """The folder of the target's own rule files; `None` if there is none."""
        folder = None if self.folder is None else self.folder / DECOMPOSITIONS
        return folder if folder is not None and folder.is_dir() else None

    def session_providers(self) -> tuple[str, ...]:
        """The providers of a session that executes models for the target.

        Raises:
            TargetError: Models cannot be executed for it here.
        """
        if not self.runs_on:
            reason = (
                f"it needs {self.needs}" if self.needs else "its folder names no provider (runs_on) that executes them"
            )
            raise TargetError(f"no models run for the target {self.name} here: {reason}")
        return self.runs_on

    def _file(self, name: str) -> Path | None:
        file = None if self.folder is None else self.folder / name
        return file if file is not None and file.is_file() else None
