"""Names of a model and of files are shown as text: they control no terminal, no page and no spreadsheet."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.markup import escape
from rich.table import Table

import ortfuse
from ortfuse.cli.app import main
from ortfuse.cli.terminal import Terminal, shown
from ortfuse.errors import InvalidModelError, OrtfuseError, OrtfuseWarning
from ortfuse.errors.escape_control_characters import cell, visible, visible_lines
from ortfuse.report.document import Document, Notes, Rows
from ortfuse.report.html.write_page import html
from ortfuse.report.terminal.break_long_names import Names
from ortfuse.runtime.session_settings import Setting

UNSEEN = ["\x00", "\x07", "\x08", "\x0b", "\x0c", "\x1b", "\x7f", "\x80", "\x85", "\x9b", "\x9d", "\u00ad", "\u061c", "\u115f", "\u180e", "\u200b",
          "\u200c", "\u200d", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202e", "\u2060", "\u2064", "\u2066", "\u2069", "\u206f", "\u3164",
          "\ud800", "\udcff", "\ue000", "\ufe0f", "\ufeff", "\ufff9", "\uffff", "\U000e0041", "\U000e01ef", "\U0010ffff"]  # fmt: skip
HOSTILE = "\x1b]0;t\x07\x1b[2J\x9b31m\u202eevil\u2066\u200b\u2028\r\nerror: [bold red]x[/] [/y] :warning: <script>alert(1)</script>'\"&${`x`}$"
"""A name with all of it. No part of it may be seen as anything but text."""


def allowed(text: str) -> bool:
    return all(one == "\n" or (one.isprintable() and visible(one) == one) or one == "\u00a0" for one in text)


@pytest.mark.parametrize("one", UNSEEN, ids=ascii)
def test_what_is_not_seen_is_shown_as_an_escape(one: str) -> None:
    assert re.fullmatch(r"a\\(x..|u....|U........)b", visible(f"a{one}b"))


def test_lines_and_tabs_are_escaped_in_a_name_and_lines_stay_in_text_of_lines() -> None:
    assert visible("a\n\r\tb") == r"a\n\r\tb"
    assert visible_lines("a\nb\r\n\x1b") == "a\nb\\r\n\\x1b"


@pytest.mark.parametrize("text", ["encoder.layer/0:MatMul_1", "größe é 漢字 Ωμ 😀 ∞ 2⁶³ → ▸ ◐ \u00a0%", "C:\\x1b", ""])
def test_what_is_seen_stays(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1", "=cmd|' /C calc'!A0"]
)
def test_no_cell_is_a_formula(text: str) -> None:
    assert not re.match(r"\s*[=+\-@\t\r\uff1d]", cell(text))
    assert cell(text).lstrip("'") == visible(text)


def test_numbers_and_names_in_cells_stay() -> None:
    assert [cell(one) for one in (-1.5, 3, None, "Conv", "a=b", "")] == [-1.5, 3, None, "Conv", "a=b", ""]


def test_errors_and_warnings_are_one_line() -> None:
    assert allowed(str(InvalidModelError(f"{HOSTILE}: bad")))
    assert "\n" not in str(InvalidModelError(HOSTILE))
    with pytest.warns(OrtfuseWarning) as said:
        warnings.warn(HOSTILE, OrtfuseWarning, stacklevel=1)
    assert allowed(str(said[0].message))
    assert allowed(Setting("enable_mem_reuse", True, HOSTILE).reason)


def test_a_terminal_shows_names_as_text() -> None:
    file = io.StringIO()
    console = Terminal(file=file, force_terminal=True, color_system="truecolor", width=4000)
    table = Table(title=escape(HOSTILE))
    table.add_column(escape(HOSTILE))
    table.add_row(Names(HOSTILE))
    for one in (HOSTILE, table, Names(HOSTILE)):
        console.print(one, highlight=False)
    with console.status(shown(HOSTILE)):
        pass
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())  # what the console itself writes
    assert allowed(plain.replace("\r", ""))
    assert plain.count("[bold red]x[/] [/y] :warning: <script>") >= 5
    assert "\x1b]0" not in file.getvalue()
    assert "\x1b[2J" not in file.getvalue()


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def assert_page(text: str) -> None:
    """A page that shows nothing unseen, runs one script alone, and says so."""
    assert allowed(text)
    tags = Tags()
    tags.feed(text)
    assert [tag for tag, _ in tags.found].count("script") == 1
    assert not [attrs for _, attrs in tags.found if any(name.startswith("on") for name in attrs)]
    assert not [attrs for _, attrs in tags.found if (attrs.get("href") or "#")[0] != "#" or "src" in attrs]
    (policy,) = [attrs["content"] for tag, attrs in tags.found if attrs.get("http-equiv") == "Content-Security-Policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_a_page_shows_names_as_text_and_has_a_policy() -> None:
    page = Document(
        HOSTILE,
        HOSTILE,
        [Rows(HOSTILE, [HOSTILE], [[HOSTILE]], HOSTILE), Notes(HOSTILE, [HOSTILE])],
        HOSTILE,
    )
    assert_page(html(page))


def hostile_model(name: str = HOSTILE) -> onnx.ModelProto:
    """A model in which every name that a model may have is hostile."""
    size = f"{name}n"
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), f"{name}w")
    one = numpy_helper.from_array(np.ones(4, np.float32), f"{name}b")
    body = [helper.make_node("Add", ["a", "a"], ["b"], name=f"{name}f")]
    function = helper.make_function(f"{name}d", f"{name}F", ["a"], ["b"], body, [helper.make_opsetid("", 21)])
    nodes = [
        helper.make_node("MatMul", [f"{name}x", f"{name}w"], [f"{name}m"], name=f"{name}1", doc_string=name),
        helper.make_node("Add", [f"{name}m", f"{name}b"], [f"{name}s"], name=f"{name}2"),
        helper.make_node("Sigmoid", [f"{name}s"], [f"{name}g"], name=f"{name}3"),
        helper.make_node("Mul", [f"{name}s", f"{name}g"], [f"{name}h"], name=f"{name}4"),
        helper.make_node(f"{name}F", [f"{name}h"], [f"{name}i"], name=f"{name}5", domain=f"{name}d"),
        helper.make_node("Relu", [f"{name}i"], [f"{name}y"], name=f"{name}6"),
    ]
    graph = helper.make_graph(
        nodes, f"{name}g", [helper.make_tensor_value_info(f"{name}x", TensorProto.FLOAT, [size, 4])],
        [helper.make_tensor_value_info(f"{name}y", TensorProto.FLOAT, [size, 4])], [weight, one], doc_string=name,
    )  # fmt: skip
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(f"{name}d", 1)], functions=[function]
    )
    made.ir_version, made.producer_name = 10, name
    helper.set_model_props(made, {f"{name}k": name})
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with that model under a name that is no better."""
    monkeypatch.chdir(tmp_path)
    name = HOSTILE.replace("/", "").replace("\x00", "") + ".onnx"
    onnx.save(hostile_model(), "m.onnx")
    onnx.save(hostile_model(), name)
    Path("models").mkdir()
    onnx.save(hostile_model(), f"models/{name}")
    plain = hostile_model()
    plain.graph.node[-1].op_type = "Neg"
    onnx.save(plain, "other.onnx")
    return tmp_path / name


COMMANDS = [
    "optimize {} -o r.onnx --verify --explain --report p.html --json j.json",
    "optimize {} --verify=sites --force activation=none",
    "convert {} -o r.onnx",
    "verify {} other.onnx",
    "diff {} other.onnx --report p.html",
    "bisect {}",
    "explain {}",
    "inspect {}",
    "bench {} other.onnx --rounds 1 --report p.html",
    "profile {} --rounds 1 --csv c.csv --report p.html",
    "sweep models --no-bench --report p.html",
    "optimize {} -o {}.data/x",
    "bench {} --rounds 1 --size nothing=3",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_what_controls_a_terminal(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([part.replace("{}", folder.name) for part in command.split()])
    assert end.value.code in (0, 1, 2)
    said = capsys.readouterr()
    assert allowed(said.out)
    assert allowed(said.err)
    if "p.html" in command:
        assert_page(Path("p.html").read_text())
    if "j.json" in command:
        assert allowed(Path("j.json").read_text())
        json.loads(Path("j.json").read_text())
    if "c.csv" in command:
        with Path("c.csv").open(newline="") as file:
            assert all(allowed(one) for row in csv.reader(file) for one in row)


def test_no_cell_of_a_profile_is_a_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(hostile_model("=1+1"), "m.onnx")
    with pytest.raises(SystemExit):
        main(["profile", "m.onnx", "--rounds", "1", "--no-remedies", "--csv", "c.csv"])
    with Path("c.csv").open(newline="") as file:
        cells = [one for row in csv.reader(file) for one in row]
    assert [one for one in cells if one.startswith("'=1+1")]
    assert not [one for one in cells if one.startswith(("=", "+", "@"))]


def test_a_picture_takes_no_name_for_a_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    onnx.save(hostile_model("$\\frac{$"), "$x_$.onnx")
    with pytest.raises(SystemExit) as end:
        main(["profile", "$x_$.onnx", "--rounds", "1", "--no-remedies", "--png", "p.png"])
    assert end.value.code == 0
    assert Path("p.png").stat().st_size > 1000


def test_names_of_files_in_no_encoding_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (b"\xff\xfe.onnx", b"a\x1b[31m.onnx", b"[b][x].onnx", b"\xe2\x80\xae.onnx"):
        path = os.fsdecode(bytes(tmp_path) + b"/" + name)
        Path(path).write_bytes(hostile_model("x").SerializeToString())
        for arguments in (["inspect", path], ["optimize", path, "-o", path, "--no-load"], ["inspect", f"{path}no"]):
            with pytest.raises(SystemExit) as end:
                main(arguments)
            assert end.value.code in (0, 2)
            said = capsys.readouterr()
            assert allowed(said.out + said.err)


def test_a_process_of_its_own_shows_them_too(tmp_path: Path) -> None:
    path = bytes(tmp_path) + b"/\xff\xfe\xe2\x80\xae[/b].onnx"
    done = subprocess.run([sys.executable, "-m", "ortfuse", "inspect", path], capture_output=True, check=False)
    assert done.returncode == 2
    assert allowed(done.stderr.decode())


def test_what_a_program_is_told_is_fit_to_be_shown(tmp_path: Path) -> None:
    made = hostile_model()
    made.graph.node[1].input[0] = HOSTILE + "missing"
    with pytest.raises(OrtfuseError) as error:
        ortfuse.optimize(made)
    assert allowed(str(error.value))
    assert "\n" not in str(error.value)
