"""The rules to judge, and the version of each: a hash of its file and of the files that this imports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import ortfuse
from ortfuse.pipeline.rule_index import FILE, hash_of
from ortfuse.rewrite import Exactness, Rule

LOWERING = "precision"
"""The beginning of the names of passes that only `quantize` runs."""


def rules_to_judge() -> dict[str, Rule]:
    """The rules that `optimize` may apply unasked, by name.

    Left out are lossy ones, those that only forced choices or other targets need, and those around a known bug of the runtime.
    """
    allowed, catalogue = (Exactness.EXACT, Exactness.ROUNDING), ortfuse.PassManager().catalogue
    own = [rule for name, rules in catalogue.passes().items() if not name.startswith(LOWERING) for rule in rules]
    asked = [rule for rule in own if rule.on_request or rule.by_definition or rule.spells_out]
    return {rule.name: rule for rule in own if rule.exactness in allowed and rule not in asked and rule.because is None}


def versions() -> Mapping[str, str]:
    """The version of every rule by name."""
    found = {}
    for file in ortfuse.PassManager().catalogue.files:
        origin = Path(file.origin)
        version = _version(origin)
        found.update({entry.name: version for entry in file.entries})
    return found


def _version(origin: Path) -> str:
    folder = next((parent for parent in origin.parents if (parent / FILE).is_file()), None)
    hashes = [hash_of(str(origin)) or ""]
    if folder is not None:
        entry = json.loads((folder / FILE).read_bytes())["files"].get(str(origin.relative_to(folder).with_suffix("")))
        hashes += [hash_of(str(folder / f"{path}.py")) or "" for path in (entry or {}).get("imports", ())]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:12]
