"""The document of a command without a result, because no model keeps the constraints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ortfuse.report.document import Block, Document


def unmet_document(name: str, why: str, blocks: Sequence[Block] = ()) -> Document:
    """Say why no model was written.

    Args:
        name: The name of the model.
        why: The constraint that nothing keeps.
        blocks: The trials, if there are any.
    """
    return Document(f"{Path(name).name}: nothing keeps what was asked", f"No model was written: {why}.", blocks)
