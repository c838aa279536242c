"""Text on the size of the result: constants and file, before and after, with reasons for growth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Needed for type checking only: these modules are not loaded unless a command uses them.
    from ortfuse.pipeline import RunReport
    from ortfuse.transforms import Grown

_MOST = 3

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_text(size: int) -> str:
    """A size with three digits and a unit: `1.25 MB`."""
    for unit, name in _UNITS:
        if abs(size) >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"


def size_line(report: RunReport, file_bytes: tuple[int | None, int | None] = (None, None)) -> str:
    """The bytes of the constants before and after and, as far as they are known, of the file."""
    line = f"constants: {size_text(report.before.constants)} -> {size_text(report.after.constants)}"
    before, after = file_bytes
    if after is not None:
        line += (
            f"   file: {size_text(after)}" if before is None else f"   file: {size_text(before)} -> {size_text(after)}"
        )
    return line


def growth_remarks(report: RunReport) -> Iterator[str]:
    """The causes of growth of the constants, and the values that were not folded to avoid it."""
    growth = {name: size for name, size in report.growth().items() if size > 0}
    if report.after.constants > report.before.constants and growth:
        passes = ", ".join(f"{name} {size_text(size)}" for name, size in list(growth.items())[:_MOST])
        yield f"the constants grew: added by {passes}{_largest(report.folded)}"
    if report.not_folded:
        total = sum(one.bytes for one in report.not_folded)
        count = len(report.not_folded)
        values = "1 value is" if count == 1 else f"{count} values are"
        yield (
            f"{values} not folded, as that would add {size_text(total)} to the file{_largest(report.not_folded)}; "
            f"the runtime computes such values when it loads the model; --max-growth {-(-total // 1000)}kB folds them"
        )


def _largest(found: Sequence[Grown]) -> str:
    if not found:
        return ""
    named = ", ".join(f"'{one.value}' of {one.operator} {size_text(one.bytes)}" for one in found[:_MOST])
    return f" (largest: {named})"
