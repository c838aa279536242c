"""The command line: what it prints, writes and refuses."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from crashing import CRASHES
from rich.console import Console
from rich.text import Text
from typer.main import get_command
from typer.testing import CliRunner, Result

import ortfuse
from ortfuse.__main__ import main
from ortfuse.cli.app import app
from ortfuse.cli.options_as_flags import Given, options_of
from ortfuse.options.parse_text import seconds
from ortfuse.pipeline import PassManager, built_in_lists
from ortfuse.report.document import Document
from ortfuse.report.documents.catalogue import list_rows
from ortfuse.report.terminal.document import show_document

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
BERT = str(GOLDEN / "bert.sdpa.ts.onnx")
LLAMA = str(GOLDEN / "llama.sdpa.ts.onnx")

WRONG_RULE = """
from ortfuse.rewrite.pattern import op, var
from ortfuse.rewrite import Exactness, RuleTest, Rule

x = var("x")
RULES = [
    Rule(name="wrong.tanh", pattern=op.Tanh(x), replace=op.Sigmoid(x), exactness=Exactness.ROUNDING, source="none",
         test=RuleTest(shapes={"x": "b 3"})),
]
"""


SMALL = """<ir_version: 8, opset_import: ["": 17]> g (float[n,3] x) => (float[n,3] pooler_output)
<float[3,3] w = {0.5, -1, 2, 0.25, 1, -0.5, 1, 0.75, -2}, float one = {1}, float half = {0.5}, float root = {1.4142135}> {
    p = MatMul(x, w) d = Div(p, root) e = Erf(d) a = Add(e, one) h = Mul(p, a) g = Mul(h, half) pooler_output = Tanh(g) }"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A model of a few nodes with a Gelu, for what checks results: it runs them many times."""
    onnx.save(onnx.parser.parse_model(SMALL), tmp_path / "small.onnx")
    return str(tmp_path / "small.onnx")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_optimize_verifies_measures_writes_and_reports(tmp_path: Path) -> None:
    output, report = tmp_path / "out.onnx", tmp_path / "report.json"
    result = run("optimize", BERT, "-o", str(output), "--verify", "--bench", "--rounds", "2", "--json", str(report))
    assert result.exit_code == 0, result.output
    assert "verified: equal on " in result.output
    assert "fused sites:" in result.output
    assert "Latency" in result.output
    onnx.checker.check_model(onnx.load(output))
    content = json.loads(report.read_text())
    assert content["families"]["attention"] == 2
    assert content["verdict"]["ok"] is True
    assert content["latency"][0]["name"] == "original"
    assert content["after"]["nodes"] < content["before"]["nodes"] / 3


def rows_of(output: str) -> list[list[str]]:
    """The cells of a table, without lines in which those of the line before go on."""
    rows = [[cell.strip() for cell in line.split("│")] for line in output.splitlines() if line.startswith("│")]
    return [row for row in rows if row[1]]


def test_passes_that_changed_nothing_are_one_row_of_the_table() -> None:
    told = run("optimize", BERT, "--passes", "fold, licm, fixpoint(eliminate_sequences, cse, dce), fuse.losses")
    assert told.exit_code == 0, told.output
    table = rows_of(told.output)
    names = [row[1] for row in table]
    rest = ["rest: 1 more that changed nothing", "finalize", "rest: analysis, 2 more that changed nothing", "all"]
    assert names == ["fold", "fixpoint", "cse", "dce", *rest]
    # The times add up: of the parts of the repetition, and of the whole run.
    times = [round(10 * float(row[2])) for row in table]
    assert times[1] == sum(times[2:5])
    assert times[-1] == times[0] + times[1] + sum(times[5:7])


def test_a_repetition_of_nothing_but_another_is_one_row() -> None:
    told = run("optimize", BERT, "--passes", "fold, fixpoint(fixpoint(cse, dce), fuse.losses)")
    assert told.exit_code == 0, told.output
    table = rows_of(told.output)
    rest = ["rest: 1 more that changed nothing", "finalize", "rest: analysis", "all"]
    assert [row[1] for row in table] == ["fold", "fixpoint", "cse", "dce", *rest]


def test_a_page_does_not_bring_what_is_on_it_to_the_terminal_too(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    command = ("optimize", BERT, "--report", str(tmp_path / "page.html"))
    assert "replaces" not in run(*command).output
    assert "replaces" in run(*command, "--explain").output


def test_what_cost_decides_can_be_measured_here_or_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "costs.json"
    monkeypatch.setattr("ortfuse.runtime.bench.rewrite_timing.default_cache", lambda: cache)
    report = tmp_path / "report.json"
    result = run("optimize", BERT, "--measure", "--force", "gelu=com.microsoft.Gelu", "--size", "sequence=8",
                 "--json", str(report))  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Chosen by cost" in result.output
    choices = {choice["rule"]: choice for choice in json.loads(report.read_text())["choices"]}
    assert choices["gelu.from_erf_form"]["source"] == "forced"
    assert "gelu.add_bias_to_bias_gelu" not in choices, "it would take the forced operator away"
    assert choices["layernorm.add_to_skip_layer_normalization"]["source"] == "measured here"
    assert cache.exists()


@pytest.mark.parametrize(
    ("forced", "words"),
    [
        ("gelu", "write it as FAMILY=OPERATOR"),
        ("gelu=Relu", "no rule of gelu makes Relu"),
        ("gulu=Gelu", "no rule or family"),
        ("gelu=Gelu,gelu=none", "gelu is given as Gelu and as none; write one of the two"),
    ],
)
def test_a_forced_choice_that_cannot_be_followed_is_refused(forced: str, words: str) -> None:
    result = run("optimize", BERT, *(part for one in forced.split(",") for part in ("--force", one)))
    assert result.exit_code == 2
    assert words in result.output


def test_pins_and_sizes_of_the_command_line_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "ortfuse.toml"
    config.write_text('pins = {gelu = "none", attention = "none"}\nsizes = {batch = 1}\nbench = true')
    options = options_of(Given(force=["gelu=Gelu"], sizes=["sequence=8"]), config)
    assert options.force == {"gelu": "Gelu", "attention": "none"}
    assert options.sizes == {"batch": 1, "sequence": 8}


def test_verify_tells_equal_from_unequal_by_its_exit_code(tmp_path: Path, small: str) -> None:
    same = run("verify", small, small)
    assert same.exit_code == 0
    changed = tmp_path / "changed.onnx"
    onnx.save(onnx.parser.parse_model(SMALL.replace("0.75", "0.76")), changed)
    different = run("verify", small, str(changed))
    assert different.exit_code == 1
    assert "NOT EQUAL: output '" in different.output


def test_a_wrong_result_is_not_written_and_the_pass_is_named(tmp_path: Path, small: str) -> None:
    rules, output = tmp_path / "wrong.py", tmp_path / "out.onnx"
    rules.write_text(WRONG_RULE)
    report = tmp_path / "report.json"
    result = run("optimize", small, "-o", str(output), "--verify", "--patterns", str(rules), "--json", str(report))
    assert result.exit_code == 1
    message = " ".join(result.output.split())
    assert "output 'pooler_output' differs" in message
    assert "the pass fuse.wrong broke it; nothing was written" in message
    assert not output.exists()
    content = json.loads(report.read_text())
    assert content["verdict"]["ok"] is False
    assert content["blame"] == "the pass fuse.wrong broke it"
    assert content["written"] is None


def test_verify_sites_undoes_the_wrong_rewrite_and_writes_the_rest(tmp_path: Path, small: str) -> None:
    rules, output, report = tmp_path / "wrong.py", tmp_path / "out.onnx", tmp_path / "report.json"
    rules.write_text(WRONG_RULE)
    result = run(
        "optimize", small, "-o", str(output), "--verify=sites", "--patterns", str(rules), "--json", str(report)
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "1 wrong and undone" in result.output
    assert "undone: wrong.tanh at 'pooler_output'" in result.output
    checks = json.loads(report.read_text())["sites"]
    assert [check["rule"] for check in checks if check["state"] == "undone"] == ["wrong.tanh"]
    assert all(check["state"] == "equal" for check in checks if check["rule"] != "wrong.tanh")
    assert run("verify", small, str(output)).exit_code == 0


def test_verify_without_a_value_is_of_the_whole_model_wherever_it_stands(small: str) -> None:
    assert "verified: equal on " in run("optimize", "--verify", small).output
    assert "1 change checked where it happens" in run("optimize", "--verify", "sites", small).output


def test_a_result_for_the_quantizer_holds_attention_in_functions(tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    assert run("optimize", BERT, "-o", str(output), "--for", "quantization").exit_code == 0
    assert [function.name for function in onnx.load(output).functions] == ["StandardAttention"]
    refused = run("optimize", BERT, "--for", "quantization", "--passes", "fold")
    assert refused.exit_code == 2
    assert "--for: quantization has passes of its own; leave out --passes" in refused.output
    assert "write one of execution, quantization" in run("optimize", BERT, "--for", "speed").output


def test_the_version_comes_with_those_of_what_the_result_depends_on() -> None:
    result = run("--version")
    assert result.exit_code == 0
    for name in ("ortfuse", "onnx", "onnxruntime", "onnx_ir"):
        assert f"{name} {version(name)}" in result.output


def test_no_command_shows_the_help() -> None:
    result = run()
    assert result.exit_code == 0
    assert "Exit codes" in result.output


def test_the_help_of_options_shows_what_stands_in_brackets() -> None:
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for option in command.params:
            assert not Text.from_markup(getattr(option, "help", None) or "").spans, f"{name}: {option.name}"
    assert "ortfuse[plot]" in " ".join(run("profile", "--help").output.split())


def test_columns_are_the_width_of_what_is_piped() -> None:
    inspect = [sys.executable, "-m", "ortfuse", "inspect", BERT]
    diff = [sys.executable, "-m", "ortfuse", "diff", BERT, str(GOLDEN / "resnet.ts.onnx"), "--debug"]
    plain = {name: value for name, value in os.environ.items() if name != "COLUMNS"}

    def widest(command: list[str], **columns: str) -> int:
        said = subprocess.run(command, env={**plain, **columns}, capture_output=True, text=True).stdout
        assert said and "\x1b" not in said
        return max(len(line.rstrip()) for line in said.splitlines())

    assert widest(inspect) > 70 >= max(widest(inspect, COLUMNS="70"), widest(diff, COLUMNS="70"))


def test_the_paragraphs_of_the_help_are_as_wide_as_the_terminal() -> None:
    said = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, ["optimize", "--help"]).output
    lines = [line.strip() for line in said.splitlines()]
    first = lines.index(next(line for line in lines if line.startswith("Report the nodes")))
    assert all(len(line) > 60 for line in lines[first : lines.index("", first) - 1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--verify=site"], "write --verify alone or --verify=sites, not 'site'"),
        (["--verify", "site"], "extra argument(s) (site); see `ortfuse optimize --help`"),
        (["--threads", "two"], "'--threads': write a whole number, 0 or more, not 'two'"),
        (["--threads", "-1"], "'--threads': write a whole number, 0 or more, not '-1'"),
        (["--seed", "-1"], "'--seed': write a whole number, 0 or more"),
        (["--rounds", "0"], "'--rounds': write a whole number, 1 or more"),
        (["--max-opset", "0"], "'--max-opset': write a whole number, 1 or more"),
        (["--tolerance", "small"], "'--tolerance': write a number that is 0 or more, such as 1e-3, not 'small'"),
        (["--tolerance", "nan"], "'--tolerance': write a number that is 0 or more"),
        (["--bnch"], "--bench"),
        (["--size", "sequence=8"], "--size: sequence=8 is a size for measuring or verifying; add --bench"),
        (["--bench", "--size", "sequence"], "--size: write NAME=NUMBER"),
        (["--bench", "--size", "sequence=-1"], "with a number of 0 or more"),
        (["--bench", "--size", "sequence=8", "--size", "sequence=9"], "--size: sequence has two sizes, 8 and 9"),
        (["--bench", "--size", "length=8"], "'length': the inputs have no open dimension of that name; write one of batch, seq"),
        (["--bench", "--size", "sequence=8", "--inputs", "x.npz"], "--inputs have sizes of their own"),
        (["--json", "none/report.json"], "none/report.json: cannot be written: the folder none does not exist; create it"),
        (["-o", "out.onnx", "--json", "./out.onnx"], "'--json': out.onnx is --output too; write two names"),
        (["-o", "out.onnx", "--report", "./out.onnx"], "'--report': out.onnx is --output too; write two names"),
        (["--json", "out.json", "--report", "out.json"], "'--report': out.json is --json too; write two names"),
        (["--json", BERT], "bert.sdpa.ts.onnx is MODEL too; write two names"),
        (["--report", "a.npz", "--inputs", "a.npz"], "'--report': a.npz is --inputs too; write two names"),
        (["--check", "a.json", "--json", "a.json"], "'--json': a.json is --check too; write two names"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_used_is_refused_at_once_in_one_line(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PassManager, "run", None)  # nothing may be run
    result = run("optimize", BERT, *arguments)
    assert result.exit_code == 2
    (line,) = result.output.strip().splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_links_in_a_circle_are_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").symlink_to("m.onnx")
    result = run("inspect", str(tmp_path / "m.onnx"))
    assert result.exit_code == 2
    (line,) = result.output.strip().splitlines()
    assert line.startswith(f"error: {tmp_path}/m.onnx: ")


@pytest.mark.parametrize("command", ["verify", "bisect", "explain", "bench"])
def test_every_command_looks_first_whether_its_report_can_be_written(command: str, tmp_path: Path) -> None:
    models = ["missing.onnx"] * (2 if command == "verify" else 1)
    result = run(command, *models, "--json", str(tmp_path / "none" / "report.json"))
    assert result.exit_code == 2
    assert "report.json: cannot be written" in result.output


def test_bisect_names_the_site_and_says_that_it_is_wrong(tmp_path: Path, small: str) -> None:
    rules, report = tmp_path / "wrong.py", tmp_path / "report.json"
    rules.write_text(WRONG_RULE)
    result = run("bisect", small, "--patterns", str(rules), "--json", str(report))
    assert result.exit_code == 1, result.output
    assert "site: wrong.tanh at 'pooler_output'" in result.output
    assert "WRONG REWRITE" in result.output
    assert json.loads(report.read_text())["culprit"]["nature"] == "wrong rewrite"
    assert run("bisect", small).exit_code == 0


def test_bisect_runtime_takes_the_users_inputs(tmp_path: Path) -> None:
    names = [value.name for value in ir.load(BERT).graph.inputs]
    np.savez(tmp_path / "inputs.npz", **{str(name): np.ones((2, 5), np.int64) for name in names})
    result = run("bisect", BERT, "--runtime", "--inputs", str(tmp_path / "inputs.npz"))
    assert result.exit_code == 0, result.output
    assert "the runtime's optimisers move no output beyond tolerance: equal on 1 runs" in result.output


def test_prove_finds_the_wrong_rule_and_writes_a_counterexample(tmp_path: Path) -> None:
    rules = tmp_path / "wrong.py"
    rules.write_text(WRONG_RULE)
    folder, report = tmp_path / "found", tmp_path / "report.json"
    result = run("test-rules", str(rules), "--counterexamples", str(folder), "--spellings", "1", "--json", str(report))
    assert result.exit_code == 1
    assert "wrong.tanh: FAILED" in result.output
    (written,) = onnx.load(folder / "wrong.tanh.onnx").graph.node
    assert written.op_type == "Tanh"
    failures = json.loads(report.read_text())["rules"][0]["failures"]
    assert result.output.count("output 0 is off by") == 1 < len(failures)
    assert "= Tanh (x)" in result.output
    assert f"and {len(set(failures)) - 1} more failures" in result.output


def test_a_folder_for_counterexamples_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    rules = tmp_path / "wrong.py"
    rules.write_text(WRONG_RULE)
    result = run("test-rules", str(rules), "--counterexamples", str(rules / "found"))
    assert result.exit_code == 2
    assert "found: cannot be made:" in result.output
    assert "wrong.tanh" not in result.output


def test_passes_lists_rules_and_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortfuse.cli.terminal.out.width", 120)
    result = run("passes")
    assert result.exit_code == 0
    for word in ("gelu.from_erf_form", "canonicalize", "transformer", "rounding"):
        assert word in result.output


def test_pass_lists_say_what_differs_and_what_auto_takes() -> None:
    console = Console(file=io.StringIO(), width=600)
    show_document(console, Document("", "", [list_rows(built_in_lists().values())]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert (
        text.count(
            "vectorize_loops, unroll_loops, batch_nms, unrolled_sum_to_reduce, compose_linear_maps{behind_movement=true}, "
        )
        == 1
    )
    assert "those of the list that suits the model: bert, " in text
    assert "with token ids and attention and rotations, without Conv" in text


def test_bench_measures_side_by_side(tmp_path: Path) -> None:
    report = tmp_path / "bench.json"
    result = run("bench", BERT, BERT.replace(".ts", ".dynamo"), BERT, "--rounds", "2", "--json", str(report))
    assert result.exit_code == 0, result.output
    assert "too few rounds" in result.output
    rows = json.loads(report.read_text())["latency"]
    assert [row["name"] for row in rows] == [BERT, BERT.replace(".ts", ".dynamo"), f"{BERT} (2)"]


def test_bench_has_a_row_for_a_model_on_which_the_runtime_crashes(tmp_path: Path) -> None:
    paths, report = [tmp_path / name for name in ("crash.onnx", "whole.onnx")], tmp_path / "bench.json"
    for path, text in zip(paths, (CRASHES, CRASHES.replace("1, 0, 2", "0, 1, 2")), strict=True):
        ortfuse.save(ir.from_onnx_text(text), path)
    result = run("bench", *map(str, paths), "--size", "b=4", "--rounds", "2", "--json", str(report))
    assert result.exit_code == 0, result.output
    assert "crashes when it creates a session of the model" in " ".join(result.output.split())
    crashed, whole = json.loads(report.read_text())["latency"]
    assert crashed["crash"]
    assert crashed["median_ms"] is None
    assert whole["median_ms"] > 0


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "text", "truncated"])
def test_bad_files_end_with_one_line_and_exit_code_2(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.onnx"
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        whole = Path(BERT).read_bytes()
        path.write_bytes(
            {"empty": b"", "text": b"hello, this is no model\n" * 9, "truncated": whole[: len(whole) // 2]}[kind]
        )
    output = tmp_path / "out.onnx"
    result = run("optimize", str(path), "-o", str(output))
    assert result.exit_code == 2
    assert "error: " in result.output
    assert "model.onnx" in result.output
    assert "Traceback" not in result.output
    assert not output.exists()
    assert sorted(item.name for item in tmp_path.iterdir()) == ([] if kind == "missing" else ["model.onnx"])


def test_debug_shows_the_traceback() -> None:
    result = run("optimize", "missing.onnx", "--debug")
    assert result.exception is not None
    assert "missing.onnx" in str(result.exception)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = run("optimize", BERT, "-o", str(tmp_path / "out.onnx"))
    assert result.exit_code == 2


def test_an_output_that_is_a_folder_or_in_none_is_named(tmp_path: Path) -> None:
    for output in (tmp_path, tmp_path / "none" / "out.onnx"):
        result = run("optimize", BERT, "-o", str(output))
        assert result.exit_code == 2
        assert str(output.name) in result.output


@pytest.mark.parametrize(
    ("passes", "words"),
    [
        ("nonsense", "nonsense"),
        ("fixpoint(fold", "fixpoint"),
        ("fold{max_growht=1}", "max_growht"),
        ("none.toml", "none.toml"),
    ],
)
def test_a_wrong_pipeline_is_named(passes: str, words: str) -> None:
    result = run("optimize", BERT, "--passes", passes)
    assert result.exit_code == 2
    assert words in result.output


def test_max_opset_keeps_the_model_below(tmp_path: Path) -> None:
    output, report = tmp_path / "out.onnx", tmp_path / "report.json"
    result = run("optimize", LLAMA, "--max-opset", "17", "--explain", "-o", str(output), "--json", str(report))
    assert result.exit_code == 0, result.output
    assert ir.load(output).graph.opset_imports[""] == 17
    reasons = [
        miss["refusal"]["reason"]
        for miss in json.loads(report.read_text())["misses"]
        if miss["rule"].startswith("rmsnorm.")
    ]
    assert any("needs opset 23, and at most 17 is allowed" in reason for reason in reasons)
    assert "would match if the result were allowed opset 23" in result.output


def test_a_model_that_cannot_be_lowered_to_the_limit_of_opsets_stays_and_that_is_said(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 20]> g (string[3] x) => (string[3] y) { y = StringConcat(x, x) }'
    source = tmp_path / "strings.onnx"
    onnx.save(onnx.parser.parse_model(text), source)
    result = run("optimize", str(source), "--max-opset", "19")
    words = " ".join(result.output.split())
    assert "the model is at opset 20, above the limit of 19, and stays there" in words
    assert "nothing was written; -o RESULT writes" in result.output


def test_the_package_runs_as_the_command() -> None:
    made = subprocess.run([sys.executable, "-m", "ortfuse", "optimize", "none.onnx"], capture_output=True, text=True)
    assert made.returncode == 2
    assert "none.onnx" in made.stdout + made.stderr


def test_the_budget_of_a_search_counts_from_the_beginning_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def tune(*models: object, **more: object) -> None:
        given.append(more["began"])
        raise ortfuse.OrtfuseError("no more is needed")

    monkeypatch.setattr(ortfuse, "tune", tune)
    monkeypatch.setattr(sys, "argv", ["ortfuse", "tune", BERT])
    monkeypatch.setattr("gc.set_threshold", lambda *numbers: None)  # this process goes on
    monkeypatch.setattr("atexit.register", lambda function: None)
    before = time.monotonic()
    with pytest.raises(SystemExit):
        main()
    CliRunner().invoke(app, ["tune", BERT])
    assert before <= given[0] <= time.monotonic()
    assert given[1] is None, "called from a program that began long before"


@pytest.mark.parametrize("text", ["90", "90s", "1.5min", "1.5 m", "0.025h"])
def test_times_are_read_with_their_unit(text: str) -> None:
    assert seconds(text) == pytest.approx(90)


@pytest.mark.parametrize("text", ["", "s", "-1s", "nan", "inf", "90 MB", "1e400"])
@pytest.mark.parametrize(
    "command",
    ["quantize a.onnx --max-error 0.1 --budget", "calibrate --budget", "tune a.onnx --budget", "sweep a -o b --limit"],
)
def test_what_is_no_time_is_refused(command: str, text: str) -> None:
    result = run(*command.split(), text)
    assert result.exit_code == 2
    assert "write a number and a unit, such as 120s" in " ".join(result.output.split())
