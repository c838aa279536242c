"""The document of `ortfuse bisect`: the smallest set of passes, rules, edits or optimisers that moves an output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortfuse.report.document import Document, Notes

if TYPE_CHECKING:
    from ortfuse.verification.bisection.bisect_pipeline import Bisection
    from ortfuse.verification.bisection.bisect_runtime_optimizers import RuntimeBisection


def bisection_document(name: str, found: Bisection | RuntimeBisection) -> Document:
    """Show the smallest set of passes, rules and single edits, or of the runtime's optimisers, that moves an output.

    Args:
        name: The name of the model.
        found: The result of the bisection.
    """
    summary = "An output moves beyond tolerance." if found.moved else "No output moves beyond tolerance."
    return Document(f"{name}, bisected", summary, [Notes("Finding", found.lines())])
