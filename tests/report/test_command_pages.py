"""Commands that answer with tables and remarks write the same document as a page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from ortfuse.cli.app import app
from ortfuse.report.document import Document
from ortfuse.report.documents.calibration import calibration_document, settings_document
from ortfuse.report.html.write_page import html as page_of
from ortfuse.report.terminal.document import show_document
from ortfuse.runtime.session_settings import SessionConfig
from ortfuse.tuning.rule_costs import Calibration, Decision, Effect, MeasuredSettings

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,8] x) => (float[n,8] y)
<float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) }"""


def words(page: str) -> str:
    """The text of a page, in one line."""
    body = page[page.index("<header") : page.rindex("<script>")]
    return " ".join(html.unescape(re.sub(r"<wbr>|<[^>]*>", lambda tag: "" if tag[0] == "<wbr>" else " ", body)).split())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["inspect", "--no-measure"], ["IR version 10", "multiply-accumulates: 0", "Inputs and outputs", "everything else"]),
        (["explain", "--rule", "gelu"], ["Fused", "gelu.from_erf_form", "4 nodes"]),
        (["verify", "m.onnx"], ["Verification", "verified: equal on", "Comparisons", "runtime's optimisations"]),
        (["bisect"], ["Finding", "No output moves beyond tolerance: equal on"]),
        (["convert"], ["Error of 'y'", "The ranges are those on generated inputs"]),
        (["convert", "--max-error", "1e-12"], ["nothing keeps what was asked", "No model was written"]),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)  # fmt: skip
def test_the_page_of_a_command_says_what_the_terminal_says(
    command: list[str], said: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(TEXT), "m.onnx")
    ran = CliRunner().invoke(app, [command[0], "m.onnx", *command[1:], "--report", "page.html"])
    page = words(Path("page.html").read_text())
    assert "written: page.html" in ran.output
    for text in said:
        assert text in page, page


def both(document: Document) -> tuple[str, str]:
    """The text of a document on the terminal and on its page."""
    console = Console(width=140)
    with console.capture() as printed:
        show_document(console, document)
    return " ".join(printed.get().split()), words(page_of(document))


def test_rule_costs_name_the_decisions_that_they_change() -> None:
    changed = (Decision("gelu.from_erf_form", "x 1x16x768", 0.9, 1.2),)
    found = Calibration(
        "onnxruntime 1", "cpu", 1, {"gelu.from_erf_form": {"x 1x16x768": 1.2}}, 1, 2, ("busy at x",), (), changed,
        ("another", False), Path("costs.json"),
    )  # fmt: skip
    for text in both(calibration_document(found)):
        for said in (
            "gelu.from_erf_form",
            "1.20",
            "kind of processor (another)",
            "costs.json",
            "2 measurements are left",
        ):
            assert said in text


def test_session_settings_name_the_speedup_of_each_and_the_recommended() -> None:
    effects = (Effect({"a": 1}, 1.5, (1.2, 1.8)), Effect({"b": 2}, reason="it is refused"))
    found = MeasuredSettings(
        "m.onnx", "n=1", 1, effects, None, SessionConfig(), Path("m.json"), "the folder is read-only"
    )
    for text in both(settings_document(found)):
        for said in (
            "a = 1",
            "1.20..1.80",
            "it is refused",
            "ecommended: the runtime's defaults",
            "folder is read-only",
        ):
            assert said in text
