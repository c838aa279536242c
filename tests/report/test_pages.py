"""Pages of commands: whole, self-contained, and safe whatever nodes are called."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from rich.console import Console

import ortfuse
from ortfuse.api.quantize import Quantized
from ortfuse.cli.app import main
from ortfuse.errors import OptionError
from ortfuse.profiling import Bottleneck, Creation, Fusion, Kernel, Profile, Timing
from ortfuse.quantization.outcome import Outcome, Point, SiteReport, Tried
from ortfuse.report.document import Bar, Card, Cards, Chart, Document, Dot, Notes, Rows, Scatter
from ortfuse.report.documents.bench import bench_document
from ortfuse.report.documents.latencies import is_faster, short_names, speedup_card
from ortfuse.report.documents.optimization import Drawn, optimization_document
from ortfuse.report.documents.profile import profile_document
from ortfuse.report.documents.quantization import quantization_document
from ortfuse.report.documents.tuning import failed_trials, tuning_document
from ortfuse.report.documents.unmet_constraints import unmet_document
from ortfuse.report.html.write_page import html, write_page
from ortfuse.report.model_pictures import operators
from ortfuse.report.terminal.document import show_document
from ortfuse.runtime.bench import Latencies, Latency, SessionLatency
from ortfuse.runtime.bench.machine_peaks import Peaks
from ortfuse.runtime.session_settings import SessionConfig
from ortfuse.tuning import Point as Trial
from ortfuse.tuning import TuningOutcome
from ortfuse.tuning.tune import Tuned

EVIL = "</script><script>alert(1)</script>"
TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,8] x) => (float[n,8] y)
<float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) }"""

VOID = {"meta", "br", "wbr", "input", "link", "img", "hr"}


class Reader(HTMLParser):
    """Demands that tags are closed in order, and notes references, headings and ids."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.references += [str(found[key]) for key in ("src", "href") if key in found]
        self.ids += [str(found["id"])] if "id" in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(path: Path | str) -> Reader:
    text = path.read_text(encoding="utf-8") if isinstance(path, Path) else path
    reader = Reader()
    reader.feed(text.replace("<wbr>", ""))
    reader.close()
    assert not reader.open
    assert all(reference.startswith("#") for reference in reader.references)
    assert {reference[1:] for reference in reader.references} <= set(reader.ids)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert EVIL not in text
    return reader


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(TEXT)
    for number, node in enumerate(model.graph.node):
        node.name = f"{EVIL}{number}"
    onnx.save(model, tmp_path / "a.onnx")
    return tmp_path / "a.onnx"


def test_optimize_writes_a_page_with_every_site(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit) as end:
        main(["optimize", str(path), "-o", str(tmp_path / "b.onnx"), "--verify", "--report", str(page)])
    assert end.value.code in (0, None)
    said = " ".join(read(page).text)
    result = ortfuse.optimize(path)
    assert "5 → 1" in said
    for family in result.report.families():
        assert f"{family}." in said
    assert "a.onnx, optimised" in said


def test_diff_shows_where_models_differ(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ortfuse.optimize(path, output=tmp_path / "b.onnx")
    with pytest.raises(SystemExit):
        main(["diff", str(path), str(tmp_path / "b.onnx"), "--report", str(tmp_path / "d.html")])
    assert "they differ in 1 region" in capsys.readouterr().out.replace("\n", " ")
    assert "regions that differ" in " ".join(read(tmp_path / "d.html").text)


def latency(name: str, speedup: float, bounds: tuple[float, float] | None = None) -> Latency:
    return Latency(name, 10 / speedup, 9 / speedup, 12 / speedup, 0.01, speedup, bounds, 5, 10, 8, 1.5)


def test_a_benchmark_is_bars_and_numbers() -> None:
    page = bench_document(Latencies("batch=1", (latency(EVIL, 1.0), latency("b", 1.3, (1.2, 1.4)))))
    said = " ".join(read(html(page)).text)
    assert "b is the fastest: 1.30 times" in said


def test_too_few_runs_tell_nothing() -> None:
    page = bench_document(Latencies("batch=1", (latency("a", 1.0), latency("b", 1.3))))
    assert page.summary == "Which is the fastest cannot be told from so few runs, at batch=1."
    assert "95 %" not in " ".join(read(html(replace(page, blocks=page.blocks[:1]))).text)


def test_a_quantised_model_is_shown_site_by_site() -> None:
    sites = [
        SiteReport(
            "s", "MatMul", "[1, 4]", "dynamic_int8", 1e-4, schemes=(Tried("dynamic_int8", 5e-5, 5e-5, 9, 1e-3, 1e-4),)
        ),
        SiteReport(EVIL, "Conv", "[1]", unquantized="nothing"),
    ]
    taken = Point("knapsack", {"s": "dynamic_int8"}, 1e-3, 1e-3, 1.4, 2e-3, 3e-3, 1.5, 100)
    other = Point("all", {}, 0.0, 0.0, 1.0, 0.0)
    outcome = Outcome(
        None, "l2", 0.01, "latency", "4 sets", taken, 2e-3, 3e-3, [latency("float32", 1), latency("result", 1.5)], 400, sites,
        [taken, other],
    )  # type: ignore[arg-type]  # fmt: skip
    page = quantization_document("m.onnx", Quantized(None, outcome, None))  # type: ignore[arg-type]
    said = " ".join(read(html(page)).text)
    assert "1 of 2 sites are in lower precision: 1.50 times as fast" in said
    assert "0.003 where 0.01 is allowed" in said
    assert "knapsack: error 0.002, 1.50×" in said
    assert "all: error 0, 1.00× (predicted)" in said


def test_a_tuned_model_is_shown_with_every_trial() -> None:
    usual = {"model": "original", "enable_mem_reuse": True}
    best = Trial(3, {"model": "all", "enable_mem_reuse": False}, 1.4, 7, 8, 5, 100)
    outcome = TuningOutcome(
        best, Trial(-1, usual, 1, 10, 12, 5, 120), [best], [best, Trial(4, usual, failure=EVIL)], 9.0
    )
    said = " ".join(read(html(tuning_document("m.onnx", Tuned(outcome, ortfuse.Options(), SessionConfig())))).text)
    assert "1.40 times as fast as the original in a default session, in too few runs to tell, with all" in said


def test_a_choice_that_competed_with_none_is_shown_in_one_measurement() -> None:
    usual = {"model": "original", "enable_mem_reuse": True}
    best = Trial(3, {"model": "all", "enable_mem_reuse": True}, 1.4, 7, 8, 5, 100)
    outcome = TuningOutcome(best, Trial(-1, usual, 1, 10, 12, 5, 120), (), [best], 9.0, confirmed=[best])
    tuned = Tuned(outcome, ortfuse.Options(), SessionConfig())
    said = " ".join(read(html(tuning_document("m.onnx", tuned))).text)
    assert "The choice and what optimize makes, measured once more" in said
    assert "The best of the search" not in said
    console = Console(file=io.StringIO(), width=120)
    show_document(console, tuning_document("m.onnx", tuned))
    printed = console.file.getvalue()
    assert "measured once more" in printed
    assert "The best of the search" not in printed


def test_why_trials_failed_is_printed_once_for_each_reason() -> None:
    usual = {"model": "original"}
    original = Trial(-1, usual, 1, 10, 12, 5, 120)
    failed = [Trial(number, {"model": "all"}, failure="no kernel [here]") for number in range(3)]
    console = Console(file=io.StringIO(), width=120)
    show_document(
        console,
        tuning_document(
            "m.onnx", Tuned(TuningOutcome(original, original, [], failed, 9.0), ortfuse.Options(), SessionConfig())
        ),
    )
    assert "failed 3 times: no kernel [here]" in console.file.getvalue()


def test_that_nothing_is_faster_is_told_and_no_loss() -> None:
    usual = {"model": "original"}
    original = Trial(-1, usual, 1, 10, 12, 5, 120)
    outcome = TuningOutcome(original, original, [Trial(3, {"model": "all"}, 0.9, 11, 12, 5, 100)], [], 9.0)
    page = tuning_document("m.onnx", Tuned(outcome, ortfuse.Options(), SessionConfig()))
    assert page.summary.startswith("Nothing was found that is faster")
    assert 'class="card bad"' not in html(page)


def test_where_nothing_keeps_the_limits_the_page_says_what_was_tried() -> None:
    tried = [Trial(0, {"model": "auto"}, 1.5, 8, 9, 5, 120), Trial(1, {"model": "all"}, 1.25, 9, 10, 5, 130)]
    said = " ".join(
        read(html(unmet_document("m.onnx", "max-latency of 1 ms is missed by 700%: 8 ms", failed_trials(tried)))).text
    )
    assert "No model was written: max-latency of 1 ms is missed by 700\u00a0%: 8 ms." in said
    assert "1.25" in said
    assert "Every trial" not in html(unmet_document("m.onnx", "the bound is missed"))


def test_a_trial_that_was_not_measured_has_no_numbers() -> None:
    tried = [Trial(0, {"model": "auto"}, 1.5, 8, 9, 5, 120), Trial(1, {"model": "all"}, failure="it was refused")]
    rows = next(block for block in failed_trials(tried) if isinstance(block, Rows))
    assert list(rows.rows[1]) == ["2", "all", "", "", "", "", "", "it was refused"]


def test_sessions_are_named_as_their_models_are() -> None:
    rows = [Latency(name, 1, 1, 1, 1, 1, None, 1, 1, 1, 1) for name in ("in/a.onnx", "out/b.onnx")]
    session = SessionLatency("out/b.onnx, its settings", 1, 1, 1, None, 1, 1)
    page = bench_document(Latencies("n=1", tuple(rows), (session,)))
    names = [row[0] for block in page.blocks if isinstance(block, Rows) for row in block.rows]
    assert names == ["a.onnx", "b.onnx", "b.onnx, its settings"]


def test_the_choices_by_cost_name_the_table_that_decided() -> None:
    result = ortfuse.optimize(ir.from_onnx_text(TEXT))
    source = next(choice.estimate.source for choice in result.report.choices if choice.estimate is not None)
    page = optimization_document("m.onnx", result, Drawn(ir.from_onnx_text(TEXT), result.model))
    caption = next(
        block.caption for block in page.blocks if isinstance(block, Rows) and block.title == "Chosen by cost"
    )
    assert f"Costs: {source}" in caption


def test_remarks_are_sentences_and_numbers_stay_with_their_percent() -> None:
    said = html(
        Document("t", "s", [Notes("Remarks", ["the times scatter by 34% of the median", "a.onnx: is left. Stop"])])
    )
    assert "<li>The times scatter by 34\u00a0% of the median.</li>" in said
    assert "<li>a.<wbr>onnx: is left. Stop.</li>" in said


def test_the_two_models_of_a_difference_are_called_by_name(path: Path, tmp_path: Path) -> None:
    ortfuse.optimize(path, output=tmp_path / "b.onnx")
    with pytest.raises(SystemExit):
        main(["diff", str(path), str(tmp_path / "b.onnx"), "--report", str(tmp_path / "d.html")])
    said = read(tmp_path / "d.html").text
    assert "A, a.onnx" in said
    assert "B, b.onnx" in said
    assert "before" not in said


def test_a_profile_is_shown_with_every_kernel(path: Path) -> None:
    model = ortfuse.load(path)
    kernel = Kernel(
        EVIL, "Erf", "CPU", 1, 1e-3, ("n1",), "layer.0", "", "", "fused", 1000, 100, "compute", roofline_seconds=5e-4
    )  # fmt: skip
    found = Profile(
        "n=4", 1, Timing(3, 1.0, 2.0, 900.0, 0.0, 5.0, 10**6), (kernel, replace(kernel, name="b", rule="gelu.from_erf_form")), 3e-3, 3,
        Creation(operators(model), {"Erf": 2}, {}, 0.0, (Fusion("Erf", EVIL, ("n1", "n2")),)), Peaks(1e6, 1e6, "p", 1),
        (Bottleneck("Erf", 1.0, "less of it"),), ("a remark",),
    )  # fmt: skip
    said = " ".join(read(html(profile_document("a.onnx", found))).text)
    for text in (
        "layer.*",
        "gelu.from_erf_form",
        "Where the time of a.onnx goes",
        "less of it",
        "A remark.",
        "50\u00a0% of the roof",
        "multiplied by 0.333",
    ):
        assert text in said


@pytest.mark.parametrize(
    ("bounds", "told"), [((1.2, 1.4), True), ((0.7, 0.9), False), ((0.4, 8.0), None), (None, None)]
)
def test_a_speedup_is_good_only_beyond_its_bounds(bounds: tuple[float, float] | None, told: bool | None) -> None:
    assert is_faster(latency("a", 1.3, bounds)) is told


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(OptionError, match=r"pip install 'ortfuse\[report\]'"):
        write_page(bench_document(Latencies("", (latency("a", 1.0),))), tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def test_a_table_or_a_plane_without_anything_in_it_is_left_out() -> None:
    said = " ".join(
        read(html(Document("t", "s", [Rows("Nothing here", ("a",), []), Scatter("Nor here", "x", "y", [])]))).text
    )
    assert "Nothing here" not in said and "Nor here" not in said


def test_rows_of_tables_and_dots_are_named_for_screen_readers() -> None:
    page = html(
        Document("t", "s", [Rows("A", ("a", "b"), [("one", "2")]), Scatter("B", "x", "y", [Dot(1.0, 2.0, EVIL)])])
    )
    assert '<th scope="row">one</th>' in page
    assert re.search(r'<circle[^>]*role="img" aria-label="&lt;/script', page)
    assert 'aria-pressed="false"' in page


def test_a_page_of_a_model_that_is_replaced_shows_what_it_was(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit) as end:
        main(["optimize", str(path), "-o", str(path), "--report", str(page)])
    assert end.value.code in (0, None)
    assert len(onnx.load(path).graph.node) == 1
    assert {"Erf", "Div"} <= set(read(page).text)


def test_a_measured_page_has_the_profiles_before_and_after(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit):
        main(["optimize", str(path), "-o", str(tmp_path / "b.onnx"), "--bench", "--rounds", "2", "--report", str(page)])
    said = read(page).text
    assert "Where the time goes, before and after" in said
    assert sum(re.fullmatch(r"[0-9.e-]+ ms ×1", text) is not None for text in said) >= 2, "now and before"


def test_names_in_tables_go_on_behind_their_marks_and_numbers_stay_whole() -> None:
    said = html(Document("t", "s", [Rows("A", ("a", "b"), [("conv.fuse_relu", "at 0.98, com.microsoft.FusedConv")])]))
    assert "conv.<wbr>fuse_<wbr>relu" in said
    assert "at 0.98, com.<wbr>microsoft.<wbr>FusedConv" in said


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (5, 5), (6, 6), (7, 4), (13, 5)])
def test_no_row_of_cards_is_much_shorter_than_the_others(count: int, columns: int) -> None:
    assert Cards([Card("a", "b")] * count).columns == columns


def test_the_area_of_a_dot_is_its_weight_and_large_ones_hide_none() -> None:
    small, large = Dot(1.0, 1.0, "small", weight=0.01), Dot(1.0, 1.0, "large", weight=1.0)
    plane = Scatter("", "x", "y", [small, large], level=2.0)
    assert plane.drawn == [large, small]
    assert plane.radius(large) > 3 * plane.radius(small)
    assert plane.top > 2.0, "the level is drawn too"


def test_bars_have_room_for_what_they_were() -> None:
    chart = Chart([Bar(1.0, was=4.0), Bar(2.0)])
    assert (chart.largest, chart.share(2.0)) == (4.0, 50.0)


def test_code_is_shown_as_code_and_nothing_else_is_markup() -> None:
    page = Document("a", "do `this & that` <b>", [Rows("", ("a",), [("a/b.c",)], chart=Chart([Bar(1.0)]))])
    said = html(page)
    assert '<code class="whole">this &amp; that</code> &lt;b&gt;' in said
    assert "a/<wbr>b.<wbr>c" in said


def test_which_is_faster_is_not_said_where_it_cannot_be_told() -> None:
    page = bench_document(Latencies("batch=1", (latency("x/a.onnx", 1.0), latency("x/b.onnx", 1.02, (0.9, 1.1)))))
    said = "Nothing is faster than a.onnx beyond noise, at batch=1: b.onnx is between 0.90 and 1.10 times as fast."
    assert page.summary == said
    assert {"no difference", "0.90..1.10"} <= set(read(html(page)).text)


@pytest.mark.parametrize(
    ("bounds", "large", "small"),
    [
        ((1.1, 1.3), "1.20×", "1.10 to 1.30 with 95 % confidence"),
        ((0.9, 1.4), "no difference beyond noise", "0.90 to 1.40 with 95 % confidence"),
        (None, "not known", "1.20× in too few runs to tell"),
    ],
)
def test_no_speedup_stands_in_large_type_whose_bounds_include_1(
    bounds: tuple[float, float] | None, large: str, small: str
) -> None:
    card = speedup_card("speedup", 1.2, bounds)
    assert (card.value, card.note, card.good) == (large, small, True if large == "1.20×" else None)
    original = Trial(-1, {"model": "original"}, 1, 10, 12, 5, 120)
    best = Trial(3, {"model": "all"}, 1.2, 7, 8, 5, 100, speedup_bounds=bounds)
    tuned = Tuned(TuningOutcome(best, original, [best], [best], 9.0), ortfuse.Options(), SessionConfig())
    (first, *_), *_ = (block.cards for block in tuning_document("m", tuned).blocks if isinstance(block, Cards))
    assert first.value == large
    console = Console(file=io.StringIO(), width=120)
    show_document(console, bench_document(Latencies("", (latency("a", 1.0), latency("b", 1.2, bounds)))))
    printed = console.file.getvalue()
    assert ("1.20" in printed) is (large != "no difference beyond noise")
    assert ("no difference" in printed) is (large == "no difference beyond noise")


def test_paths_are_shortened_to_what_tells_them_apart() -> None:
    assert short_names(["x/a.onnx", "y/b.onnx"]) == ["a.onnx", "b.onnx"]
    assert short_names(["x/a.onnx", "y/a.onnx"]) == ["x/a.onnx", "y/a.onnx"]
    assert short_names(["a", "a"]) == ["a", "a"]


def test_a_plane_names_a_few_numbers_of_its_vertical_axis() -> None:
    for top, steps in ((1.2, [0.25, 0.5, 0.75, 1.0, 1.25]), (3.4, [1.0, 2.0, 3.0]), (40.0, [10.0, 20.0, 30.0, 40.0])):
        assert Scatter("", "x", "y", [Dot(1.0, top, "")]).steps == steps
