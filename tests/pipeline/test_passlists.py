from __future__ import annotations

from pathlib import Path

import onnx.parser
import onnx_ir as ir
import pytest

from ortfuse.errors import PipelineError
from ortfuse.io.load_and_save import load
from ortfuse.options import Options
from ortfuse.pipeline import (
    Content,
    Counts,
    PassManager,
    built_in_lists,
    load_catalogue,
    read_list,
    suitable_list,
)  # fmt: skip
from ortfuse.pipeline.pipeline_text import parse
from ortfuse.pipeline.steps import Builder, Repeated, Single

GOLDEN = Path(__file__).parents[2] / "golden" / "models"


LEVELS = ("disabled", "basic", "extended", "all")


def operators(path: Path, passes: str) -> dict[str, int]:
    model = load(path)
    return PassManager(passes).run(model).after.operators


def test_levels_and_families_come_with_ortfuse_and_can_be_built() -> None:
    lists = built_in_lists()
    families = (
        "bert deberta t5 gpt llama whisper conformer vit swin clip unet resnet mobilenet efficientnet yolo rnn speech tree "
        "linear mixed"
    )
    assert {*LEVELS, *families.split(), "transformer", "convnet", "quantization"} == set(lists)
    for found in lists.values():
        assert found.description
        assert found.reason or found.name == "disabled"
        assert Builder(load_catalogue()).build(found.pipeline.items) or found.name == "disabled"


SMALL = {
    "clip": """<ir_version: 10, opset_import: ["": 20]>
        agraph (float[1,1,4,4] image, int64[1,4] ids) => (float[1,2,4] y, float[1,4,2] z)
        <float[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2,2] table = {1, 2, 3, 4}, float[2] g = {1, 2}> {
            cut = Conv <kernel_shape = [2, 2], strides = [2, 2]> (image, w)
            flat = Flatten <axis = 2> (cut)
            s = Softmax (flat)
            y0 = MatMul (s, flat)
            y = LayerNormalization (y0, g)
            z = Gather (table, ids)
        }""",
    "efficientnet": """<ir_version: 10, opset_import: ["": 20]>
        agraph (float[1,2,8,8] image) => (float[1,2,8,8] y) <float[2,1,1,1] w = {1, 2}> {
            c = Conv <group = 2> (image, w)
            g = Sigmoid (c)
            y = Mul (c, g)
        }""",
    "mobilenet": """<ir_version: 10, opset_import: ["": 20]>
        agraph (float[1,2,8,8] image) => (float[1,2,8,8] y) <float[2,1,1,1] w = {1, 2}> {
            c = Conv <group = 2> (image, w)
            y = Relu (c)
        }""",
    "rnn": """<ir_version: 10, opset_import: ["": 20]>
        agraph (float[5,1,1] x) => (float[5,1,1,2] y) <float[1,6,1] w = {1, 2, 3, 4, 5, 6}, float[1,6,2] r = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}> {
            y, last = GRU <hidden_size = 2> (x, w, r)
        }""",
    "linear": """<ir_version: 10, opset_import: ["": 20, "ai.onnx.ml": 3]>
        agraph (float[n,2] x) => (float[n,1] y) {
            y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0], targets = 1> (x)
        }""",
    "tree": """<ir_version: 10, opset_import: ["": 20, "ai.onnx.ml": 3]>
        agraph (float[n,2] x) => (float[n,1] y) {
            y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1> (x)
        }""",
    "yolo": """<ir_version: 10, opset_import: ["": 20]>
        agraph (float[1,1,8,8] image) => (float[1,80,2] y) <float[2,1,1,1] w = {2, 1}, float[2,2,2,2] v = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}, int64[3] rows = {0, 2, -1}> {
            c = Conv (image, w)
            d = Conv <strides = [2, 2]> (c, v)
            p = Reshape (c, rows)
            s = Sigmoid (d)
            q = Reshape (s, rows)
            j = Concat <axis = 2> (p, q)
            y = Transpose <perm = [0, 2, 1]> (j)
        }""",
    "unet": """<ir_version: 10, opset_import: ["": 20]>
        agraph (float[1,1,8,8] image) => (float[1,1,8,8] y) <float[1,1,1,1] w = {2}, float[1,2,1,1] v = {2, 1}, float[4] twice = {1, 1, 2, 2}> {
            c = Conv (image, w)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
            d = Conv (p, w)
            e = Relu (d)
            u = Resize (e, , twice)
            j = Concat <axis = 1> (u, c)
            k = Conv (j, v)
            y = Sigmoid (k)
        }""",
    "convnet": """<ir_version: 10, opset_import: ["": 20]>
        agraph (float[1,1,8,8] image) => (float[1,1,16,16] y) <float[1,1,1,1] w = {2}, float[4] twice = {1, 1, 2, 2}> {
            c = Conv (image, w)
            u = Resize (c, , twice)
            y = Sigmoid (u)
        }""",
    "resnet": """<ir_version: 10, opset_import: ["": 20]>
        agraph (float[1,1,8,8] image) => (float[1,2,8,8] y) <float[1,1,1,1] w = {2}> {
            c = Conv (image, w)
            g = Sigmoid (c)
            y = Concat <axis = 1> (c, g)
        }""",
    "all": """<ir_version: 10, opset_import: ["": 20]> agraph (float[n,2] x) => (float[n,2] y) { y = Relu (x) }""",
}
"""Models with the signs of a family and little else."""


@pytest.mark.parametrize("name", SMALL)
def test_auto_knows_families_by_their_signs(name: str) -> None:
    assert suitable_list(Content.of(ir.from_onnx_text(SMALL[name]))).name == name


ATTENDING = """<ir_version: 10, opset_import: ["": 20]>
    agraph (float[1,1,8,8] image) => (float[1,80,2] y, float[1,3] class) <float[2,1,1,1] w = {2, 1}, float[2,2,1,1] u = {1, 2, 3, 4}, float[2,2,2,2] v = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}, int64[3] rows = {0, 2, -1}, float[2,3] h = {1, 2, 3, 4, 5, 6}> {
        a = Conv (image, w)
        flat = Reshape (a, rows)
        t = Transpose <perm = [0, 2, 1]> (flat)
        scores = MatMul (t, flat)
        weights = Softmax (scores)
        attended = MatMul (flat, weights)
        size = Shape (a)
        image2 = Reshape (attended, size)
        c = Conv (image2, u)
        d = Conv <strides = [2, 2]> (c, v)
        p = Reshape (c, rows)
        s = Sigmoid (d)
        q = Reshape (s, rows)
        j = Concat <axis = 2> (p, q)
        y = Transpose <perm = [0, 2, 1]> (j)
        pooled = GlobalAveragePool (d)
        f = Flatten (pooled)
        g = MatMul (f, h)
        class = Softmax (g)
    }"""
"""A detector and a classifier of one image, with attention between their convolutions."""


def test_convolutions_with_attention_between_are_no_transformers() -> None:
    model = ir.from_onnx_text(ATTENDING)
    assert suitable_list(Content.of(model)).name == "yolo"
    only = ir.from_onnx_text(
        ATTENDING.replace("float[1,80,2] y, ", "")
        .replace("p = Reshape (c, rows)", "")
        .replace("s = Sigmoid (d)", "").replace("q = Reshape (s, rows)", "")
        .replace("j = Concat <axis = 2> (p, q)", "").replace("y = Transpose <perm = [0, 2, 1]> (j)", "")
    )  # fmt: skip
    assert suitable_list(Content.of(only)).name == "mixed"


def test_a_classifier_of_products_is_no_transformer() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> agraph (float[n,2] x, float[2,3] w) => (float[n,3] y) {
        a = MatMul (x, w) y = Softmax (a) }"""
    assert suitable_list(Content.of(ir.from_onnx_text(text))).name == "all"


WIDE = {
    "rotations": """<ir_version: 10, opset_import: ["": 20]>
        agraph (float[n,4] x, float[n,2] cos, float[n,2] sin) => (float[n,4] y) {
            a, b = Split <axis = 1, num_outputs = 2> (x)
            c = Neg (b)
            d = Mul (c, sin)
            e = Mul (a, cos)
            f = Add (d, e)
            g = Mul (b, cos)
            h = Mul (a, sin)
            i = Add (g, h)
            y = Concat <axis = 1> (f, i)
        }""",
    "activations spelled out": """<ir_version: 10, opset_import: ["": 20]>
        agraph (float[n,n] x) => (float[n,n] y) <float factor = {1.7}> { a = Mul (x, factor) b = Sigmoid (a) y = Mul (b, x) }""",
    "attention": """<ir_version: 10, opset_import: ["": 20]>
        agraph (float[n,n] x, float factor, float[n,4] v) => (float[n,4] y) {
            s = Softmax (x)
            t = Mul (s, factor)
            u = Transpose <perm = [1, 0]> (t)
            y = MatMul (u, v)
        }""",
}
"""Signs whose passes lists leave out for want of them, in spellings that no golden model has."""


@pytest.mark.parametrize("sign", WIDE)
def test_signs_that_passes_are_left_out_by_are_seen_in_any_spelling(sign: str) -> None:
    assert sign in Content.of(ir.from_onnx_text(WIDE[sign])).signs


def test_a_gate_of_channels_is_no_activation() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> agraph (float[n,2,4,4] x, float[2,2,1,1] w) => (float[n,2,4,4] y) {
        a = GlobalAveragePool (x) b = Conv (a, w) c = Relu (b) d = Sigmoid (c) y = Mul (x, d) }"""
    assert "activations spelled out" not in Content.of(ir.from_onnx_text(text))


def test_a_softmax_at_the_end_is_no_attention() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> agraph (float[n,2] x, float[2,3] w) => (float[n,3] y) {
        a = MatMul (x, w) y = Softmax (a) }"""
    assert "attention" not in Content.of(ir.from_onnx_text(text))


def test_disabled_leaves_a_model_as_it_is_and_basic_uses_no_operator_of_the_runtimes_own() -> None:
    path = GOLDEN / "bert.sdpa.ts.onnx"
    before = Counts.of(load(path)).operators
    assert operators(path, "disabled") == before
    basic = operators(path, "basic")
    assert not [name for name in basic if name.startswith("com.microsoft")]
    assert sum(basic.values()) < sum(before.values())


LEFT_OVER = """<ir_version: 8, opset_import: ["": 18]> g (float[n, m, 8] x, float[1, 1] z) => (float[n, m] y)
<int64[1] zero = {0}, int64[1] two = {2}> { s = Shape(x)  p = Slice(s, zero, two)  y = Expand(z, p) }"""
"""A part of a shape, which one of the last passes has the runtime take at once, without its bounds."""


@pytest.mark.parametrize("options", [Options(level="all"), Options(level="extended"), Options(purpose="quantization")])
def test_nothing_is_left_in_a_result_that_nothing_uses(options: Options) -> None:
    model = ir.from_onnx_text(LEFT_OVER)
    assert PassManager(options).run(model).after.operators == {"Shape": 1, "Expand": 1}
    assert not model.graph.initializers


def test_lists_that_come_with_ortfuse_name_no_pass_that_they_leave_without_rules() -> None:
    for found in built_in_lists():
        notes = PassManager(found).run(ir.from_onnx_text(LEFT_OVER)).notes
        assert not [note for note in notes if "did nothing" in note], found


LOOPS = {"fuse_recurrent", "vectorize_loops", "unroll_loops", "fuse.scan_to_reduce"}
"""The passes that have nothing to do without cells and loops."""


def test_lists_that_leave_loops_out_do_not_suit_models_that_have_some() -> None:
    for found in built_in_lists().values():
        if found.when is not None and any(
            name in str(found.pipeline) for name in ("fuse_recurrent", "vectorize_loops")
        ):
            assert "recurrence" in found.when.none, found.name
            assert all(name in str(found.pipeline) for name in LOOPS), found.name


def test_passes_can_be_left_out_of_lists_and_wildcards() -> None:
    def names(text: str) -> set[str]:
        steps = list(Builder(load_catalogue()).build(parse(text).items))
        for step in steps:
            steps += step.steps if isinstance(step, Repeated) else ()
        return {step.name for step in steps if isinstance(step, Single)}

    everything = names("all")
    assert everything - names('all{without="fuse.rotary fuse.convolution"}') == {"fuse.rotary", "fuse.convolution"}
    assert names("fuse.*") - names('fuse.*{without="fuse.rotary"}') == {"fuse.rotary"}
    with pytest.raises(PipelineError, match=r"no pass or pass list 'fuse\.rotry'"):
        names('all{without="fuse.rotry"}')


def test_lists_of_ones_own_extend_and_replace_those_that_come_with_ortfuse(tmp_path: Path) -> None:
    (tmp_path / "bert.toml").write_text(
        "passes = ['fold']\n[when]\nall = ['token ids', 'attention', 'layer normalisation']\n"
    )
    (tmp_path / "cells.toml").write_text("passes = ['bert', 'dce']\n[when]\nany = ['GRU']\n")
    manager = PassManager(Options(lists=tmp_path))
    assert manager.run(load(GOLDEN / "bert.sdpa.ts.onnx")).pipeline == "fold, finalize"
    report = manager.run(ir.from_onnx_text(SMALL["rnn"]))
    assert (report.pipeline, report.pass_list) == ("fold, dce, finalize", "cells, since the model has GRU (1)")
    with pytest.raises(PipelineError, match="has no pass lists"):
        PassManager(Options(lists=tmp_path / ".."))


def test_a_list_of_ones_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'description = "d"\npasses = ["fold{max_growth=1}", "fixpoint(cse, dce)"]\n[when]\nany = ["Conv"]\n'
    )
    found = read_list(path)
    assert (found.name, str(found.pipeline)) == ("mine", "fold{max_growth=1}, fixpoint(cse, dce)")
    assert found.when is not None
    assert found.when.holds({"Conv"})
    assert not found.when.holds({"Relu"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("passes = [", "not TOML"),
        ("passes = 'fold'", r"^\S+mine.toml: passes must be a list of texts"),
        ("description = 'no passes'", "passes must be a list of texts"),
        ("passes = ['fold,']", "expected the name"),
        ("passes = []\nwhem = {}", "has no 'whem'"),
        ("passes = []\ndescription = 1", "description must be a text"),
        ("passes = []\n[when]\nsome = ['Conv']", r"\[when\] has lists"),
        ("passes = []\n[when]\nany = 'Conv'", "when.any must be a list"),
        ("passes = []\nreason = 1", "reason must be a text"),
        ("passes = []\n[when]\nany = ['token identities']", "neither an operator nor a sign"),
    ],
)
def test_mistakes_in_a_list_name_the_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(PipelineError, match=message) as error:
        read_list(path)
    assert str(path) in str(error.value)


def test_a_list_that_names_no_pass_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("passes = ['fixpoint(canonicalise)']")
    with pytest.raises(
        PipelineError, match=r"^pass list mine: there is no pass or pass list 'canonicalise'; did you mean"
    ):
        PassManager(Options(lists=tmp_path, passes="mine"))


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"nothing\.toml"):
        read_list(tmp_path / "nothing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PipelineError, match="not UTF-8"):
        read_list(tmp_path / "binary.toml")


def test_attributes_that_a_function_is_given_say_nothing() -> None:
    made = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17, "d": 1]>
        g (float[1,2,5,5] x, float[2,1,3,3] w) => (float[1,2,3,3] y) { y = d.f<group = 2, k = float {2.0}>(x, w) }
        <domain: "d", opset_import: ["": 17]> f <group, k>(x, w) => (y)
        { c = Conv<group: int = @group>(x, w) k = Constant<value: tensor = @k>() y = Mul(c, k) }""")
    content = Content.of(ir.from_proto(made))
    assert content.operators == {"d.f": 1, "Conv": 1, "Constant": 1, "Mul": 1}
    assert "depthwise convolutions" not in content


@pytest.mark.parametrize("name", ["canonicalize", "fold", "fuse.attention", "auto"])
def test_a_list_does_not_hide_a_pass(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.toml").write_text('passes = ["dce"]')
    with pytest.raises(PipelineError, match=f"'{name}' has the name of a pass"):
        PassManager(Options(lists=tmp_path))
