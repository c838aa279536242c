"""The pages as headless Chromium shows them, at two widths; where there is no Chromium, nothing is tested."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

from ortfuse.cli.app import main
from ortfuse.report.documents.bench import bench_document
from ortfuse.report.html.write_page import html as made
from ortfuse.runtime.bench import Latencies, Latency

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")

WIDTHS = (420, 1280)
TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,8] x) => (float[n,8] y)
<float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) }"""

HARNESS = """<!doctype html><meta charset="utf-8"><body><script>
const pages = PAGES, widths = WIDTHS, found = [];
let left = 0;
function look(frame, name, width) {
  const page = frame.contentDocument, root = page.documentElement, body = page.body;
  const named = one => one.getAttribute("aria-label") || one.textContent.trim() || one.closest("label");
  const wide = [...page.querySelectorAll("main *")].filter(one => !one.closest(".scroll, figure, pre, .places") &&
    one.getBoundingClientRect().right > width + 1).map(one => one.tagName + "." + one.className);
  const ground = frame.contentWindow.getComputedStyle(body).backgroundColor;
  const pressed = page.getElementById("theme").getAttribute("aria-pressed");
  page.getElementById("theme").click();
  found.push({
    name, width, overflow: root.scrollWidth - width, wide: wide.slice(0, 5),
    cut: [...page.querySelectorAll(".scroll")].filter(one => one.scrollWidth > one.clientWidth).length,
    unnamed: [...page.querySelectorAll("a, button, input, summary, svg, [tabindex]")].filter(one =>
      !named(one)).map(one => one.outerHTML.slice(0, 80)),
    fetched: frame.contentWindow.performance.getEntriesByType("resource").map(one => one.name),
    headings: [...page.querySelectorAll("h1, h2, h3")].map(one => one.tagName),
    themes: [ground, frame.contentWindow.getComputedStyle(body).backgroundColor],
    pressed: [pressed, page.getElementById("theme").getAttribute("aria-pressed")],
  });
  if (--left === 0) {
    const all = document.createElement("pre");
    all.id = "found";
    all.textContent = JSON.stringify(found);
    document.body.replaceChildren(all);
  }
}
for (const [name, text] of Object.entries(pages)) for (const width of widths) {
  const frame = document.createElement("iframe");
  left += 1;
  frame.style.cssText = `width:${width}px;height:800px;border:0`;
  frame.onload = () => look(frame, name, width);
  frame.srcdoc = text;
  document.body.append(frame);
}
</script>"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the browser says of each page at each width."""
    folder = tmp_path_factory.mktemp("pages")
    source, result = folder / "a.onnx", folder / "b.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), source)
    commands = {
        "optimize": ["optimize", str(source), "-o", str(result), "--verify"],
        "diff": ["diff", str(source), str(result)],
    }
    rows = tuple(Latency(f"a{'_long' * 30}/{n}.onnx", 10 / n, 9 / n, 11 / n, 0.1, n, None, 5, 10, 8, 1) for n in (1, 2))
    usual = (
        Latency("swin.sdpa.ts.onnx", 10, 9, 11, 0.1, 1, None, 5, 1223, 504, 1),
        Latency("swin.onnx", 5, 4, 6, 0.1, 2, (1.86, 3.0), 5, 95, 95, 1),
    )
    pages = {
        "bench": made(bench_document(Latencies("batch=1", rows))),
        "numbers": made(bench_document(Latencies("batch=1", usual))),
    }
    for name, command in commands.items():
        with pytest.raises(SystemExit):
            main([*command, "--report", str(folder / f"{name}.html")])
        pages[name] = (folder / f"{name}.html").read_text(encoding="utf-8")
    text = HARNESS.replace("WIDTHS", json.dumps(WIDTHS)).replace("PAGES", json.dumps(pages).replace("</", "<\\/"))
    (folder / "harness.html").write_text(text, encoding="utf-8")
    return _found(folder / "harness.html")


def _found(harness: Path) -> list[dict[str, Any]]:
    """What the harness has found, or nothing where the browser does not start, as in some containers."""
    assert BROWSER is not None
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    try:
        done = subprocess.run(
            [*command, harness.as_uri()], capture_output=True, text=True, timeout=60, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip("Chromium does not answer")
    said = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    if done.returncode or not done.stdout:
        pytest.skip("Chromium does not start here")
    assert said is not None
    return list(json.loads(html.unescape(said[1])))


def test_pages_fit_into_narrow_and_wide_windows(seen: list[dict[str, Any]]) -> None:
    assert [(one["name"], one["width"]) for one in sorted(seen, key=lambda one: (one["name"], one["width"]))] == [
        (name, width) for name in ("bench", "diff", "numbers", "optimize") for width in WIDTHS
    ]
    assert {(one["name"], one["width"]): (one["overflow"], one["wide"]) for one in seen if one["wide"]} == {}
    assert max(one["overflow"] for one in seen) <= 0


def test_the_columns_of_numbers_are_all_seen_in_a_wide_window(seen: list[dict[str, Any]]) -> None:
    assert [one["cut"] for one in seen if one["name"] == "numbers" and one["width"] == max(WIDTHS)] == [0]


def test_nothing_is_fetched(seen: list[dict[str, Any]]) -> None:
    assert not any(one["fetched"] for one in seen)


def test_what_can_be_reached_has_a_name_and_headings_have_an_order(seen: list[dict[str, Any]]) -> None:
    assert [one["unnamed"] for one in seen] == [[]] * len(seen)
    assert all(one["headings"][0] == "H1" and one["headings"].count("H1") == 1 for one in seen)


def test_the_button_changes_light_and_dark(seen: list[dict[str, Any]]) -> None:
    assert all(one["themes"][0] != one["themes"][1] for one in seen)
    assert all(one["pressed"][0] != one["pressed"][1] for one in seen)
