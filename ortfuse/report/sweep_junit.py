"""Write a sweep as JUnit XML, the test format of continuous integration: one test case per model.

A wrong result and an unexpected success are failures; what is refused, crashes or hangs is an error; a known failure is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from xml.etree import ElementTree

from ortfuse.errors.escape_control_characters import visible
from ortfuse.report.documents.sweep import done, speed
from ortfuse.sweeping import Row, Sweep

SUITE = "ortfuse.sweep"


def junit(found: Sweep) -> str:
    """The text of the file."""
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", name=SUITE)
    kinds = [_add(suite, row) for row in found.rows]
    counts = {
        "tests": len(kinds),
        "failures": kinds.count("failure"),
        "errors": kinds.count("error"),
        "skipped": kinds.count("skipped"),
    }
    for element in (root, suite):
        element.attrib |= {**{name: str(count) for name, count in counts.items()}, "time": _seconds(found.rows)}
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add(suite: ElementTree.Element, row: Row) -> str:
    """Add the test case of a model; returns the name of what stands in it: `failure`, `error`, `skipped`, or nothing."""
    place = PurePath(row.model)
    folder = ".".join(part for part in place.parent.parts if part not in ("/", "..", "."))
    case = ElementTree.SubElement(
        suite, "testcase", classname=visible(folder or SUITE), name=visible(place.name), time=_seconds([row])
    )
    if facts := _facts(row):
        properties = ElementTree.SubElement(case, "properties")
        for name, value in facts.items():
            ElementTree.SubElement(properties, "property", name=name, value=visible(value))
    kind = _kind(row)
    if kind:
        why = row.outcome if row.outcome == "unexpected success" else row.status
        ElementTree.SubElement(case, kind, type=why, message=visible(row.remark())).text = visible(row.model)
    return kind


def _kind(row: Row) -> str:
    if row.outcome == "known failure":
        return "skipped"
    if row.outcome == "unexpected success" or row.status == "wrong":
        return "failure"
    return "" if row.status == "ok" else "error"


def _facts(row: Row) -> dict[str, str]:
    """The findings of a sweep about a model, by name."""
    facts = {"nodes": f"{row.nodes_before} -> {row.nodes_after}" if row.nodes_before else "", "fused": done(row)}
    facts["outputs"] = row.verdict
    if said := speed(row):
        facts["speedup"] = said
    return {name: value for name, value in facts.items() if value}


def _seconds(rows: Sequence[Row]) -> str:
    return f"{sum(row.seconds for row in rows):.3f}"
