"""Placement and profile, as the runtime prints or writes them."""

from __future__ import annotations

import re
from pathlib import Path

from .find_packages import NodeError

_PLACED = re.compile(r"(?:Node\(s\)|All nodes) placed on \[(\w+)\]\. Number of nodes: (\d+)")
_NODE = re.compile(r"VerifyEachNodeIsAssignedToAnEp\]\s+(?:([\w.]+)::)?(\w+) \((.*)\)$")
"""Lines in the log of a session: the number of nodes on a provider, and each of them."""


def placement_in(log: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return the provider of each node that the log of a session tells, with its domain, operator and name if it tells them.

    Raises:
        NodeError: It tells none.
    """
    found: list[tuple[str, list[tuple[str, str, str]]]] = []
    provider = ""
    for line in log.replace("\x1b[m", "").splitlines():
        if placed := _PLACED.search(line):
            provider = placed[1]
            if "All nodes" in line:
                found += [(provider, [("", "", "")])] * int(placed[2])
        elif provider and (node := _NODE.search(line)):
            found.append((provider, [(node[1] or "", node[2], node[3])]))
        elif "VerifyEachNodeIsAssignedToAnEp" not in line:
            provider = ""
    if not found:
        raise NodeError("the log of ONNX Runtime names no providers")
    return found


def written_profile(prefix: str, printed: str) -> str:
    """Return the path of a profile: the file that the runtime wrote, or one with what it printed instead.

    Raises:
        NodeError: There is neither.
    """
    if start := printed.find("[") + 1:
        path = Path(f"{prefix}.json")
        path.write_text(printed[start - 1 :])
        return str(path)
    files = sorted(Path(prefix).parent.glob(f"{Path(prefix).name}*.json"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise NodeError("ONNX Runtime wrote no profile")
    return str(files[-1])
