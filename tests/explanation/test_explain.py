"""What explain says of each site: what fused it, or what came nearest, what stopped it and what would help."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.errors import RuleError
from ortfuse.io.load_and_save import load, save
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import NODES_KEY, RULE_KEY
from ortfuse.rewrite.pattern import op, opt, scalar, variables
from ortfuse.rewrite.pattern.min_nodes import least_nodes
from ortfuse.verification.explanation import Explanation
from ortfuse.verification.explanation.explain import fused_sites

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "golden" / "models"
BERT = GOLDEN / "bert.sdpa.ts.onnx"
LLAMA = GOLDEN / "llama.sdpa.ts.onnx"
GELU = "a = Div(x, r) e = Erf(a) p = Add(e, one) m = Mul(x, p) y = Mul(m, half)"
x, y = variables("x y")


def model(body: str = GELU, outputs: str = "float[b,3] y", root: str = "1.4142135") -> ir.Model:
    numbers = f"<float r = {{{root}}}, float one = {{1}}, float half = {{0.5}}>"
    return ir.from_onnx_text(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[b,3] x) => ({outputs}) {numbers} {{ {body} }}'
    )


def test_a_fused_site_has_its_rule_and_the_original_nodes() -> None:
    found = ortfuse.explain(BERT, rules=["attention"])
    assert len(found.fused) == 2
    assert found.missed == ()
    names = {node.name for node in load(BERT).graph}
    for site in found.fused:
        assert site.rule.startswith("attention.")
        assert "Attention" in site.operators
        assert len(site.nodes) > 5
        assert set(site.nodes) <= names
    json.dumps(found.to_dict())


def test_what_only_moves_elements_for_a_site_is_no_site_of_its_own() -> None:
    """Such as the mask that a rule widened and that the rule which took over the site still reads."""
    made = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 23]>
        g (float[b,s,8] q, float[b,1,1,s] m, float[b,4,s,s] w, int64[4] n) => (float[b,s,8] y, float[b,1,1,s] z)
        { e = Expand(m, n) y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, q, q, e) z = Reshape(m, n) }""")
    for node, (rule, names) in zip(
        made.graph,
        [("attention.sdpa", "a;b"), ("attention.split_heads_to_3d_inputs", "a;b;c"), ("attention.sdpa", "d")],
        strict=True,
    ):
        node.metadata_props.update({RULE_KEY: rule, NODES_KEY: names})
    catalogue = load_catalogue()
    fused = fused_sites(made, {rule.name: rule for rule in catalogue.rules()})
    assert [(site.rule, site.site) for site in fused] == [
        ("attention.split_heads_to_3d_inputs", "y"),
        ("attention.sdpa", "z"),
    ]


def only_miss(found: Explanation) -> tuple[str, str]:
    assert [(miss.rule, miss.site) for miss in found.missed] == [("gelu.from_erf_form", "y")]
    return found.missed[0].refusal.reason, found.missed[0].refusal.remedy


def test_a_wrong_constant_is_named_and_the_right_one_with_it() -> None:
    reason, remedy = only_miss(ortfuse.explain(model(root="1.5")))
    assert reason == "the constants in 'a' make up 0.6666667, not 0.7071068"
    assert remedy == "the constants in 'a' made up 0.7071068"


def test_another_use_of_an_intermediate_is_named_with_its_user() -> None:
    found = ortfuse.explain(model(GELU + " z = Tanh(e)", "float[b,3] y, float[b,3] z"))
    reason, remedy = only_miss(found)
    assert "'e' is also used by Tanh" in reason
    assert "nothing else used 'e': take it off Tanh" in remedy
    assert found.missed[0].root.startswith("Mul")
    assert found.missed[0].matched >= found.missed[0].minimum >= 4


def test_an_intermediate_that_is_an_output_is_named() -> None:
    reason, remedy = only_miss(ortfuse.explain(model(outputs="float[b,3] y, float[b,3] p")))
    assert "'p' is a graph output" in reason
    assert "'p' were no output of the model" in remedy


def test_the_opset_that_is_missing_is_named() -> None:
    found = ortfuse.explain(LLAMA, rules=["rmsnorm"], max_opset=17)
    nearest = found.missed[0]
    assert (nearest.rule, nearest.matched) == ("rmsnorm.from_decomposed_form", 6)
    assert "needs opset 23, and at most 17 is allowed" in nearest.refusal.reason
    assert "--max-opset of 23 or more" in nearest.refusal.remedy
    assert len([miss for miss in found.missed if miss.site == nearest.site]) == 1


def test_misses_of_nodes_that_another_rule_fused_are_left_out() -> None:
    found = ortfuse.explain(model())
    assert [site.rule for site in found.fused] == ["gelu.from_erf_form"]
    assert found.missed == ()


@pytest.mark.parametrize("name", ["gpt2.sdpa.ts", "llama.sdpa.dynamo", "resnet.ts"])
def test_no_miss_is_of_nodes_that_are_gone(name: str) -> None:
    path = GOLDEN / f"{name}.onnx"
    families = sorted({rule.rule.partition(".")[0] for rule in ortfuse.explain(path).fused})
    found = ortfuse.explain(path, rules=families)
    left = {output.name for node in ortfuse.optimize(path).model.graph for output in node.outputs}
    assert {miss.site for miss in found.missed} <= left
    assert len({(miss.family, miss.site) for miss in found.missed}) == len(found.missed)


def test_a_family_without_a_site_says_what_the_model_lacks() -> None:
    found = ortfuse.explain(model(), rules=["conv"])
    assert "the model has no Conv" in found.absent["conv.fuse_relu"]


def test_rules_that_others_came_before_are_told_from_those_without_a_site() -> None:
    assert ortfuse.explain(GOLDEN / "gpt2.sdpa.ts.onnx", rules=["attention.sdpa_nan_guard"]).absent == {
        "attention.sdpa_nan_guard": "applied at 2 sites, where later rules or passes replaced its result (the table of `ortfuse optimize` names them)"
    }
    found = ortfuse.explain(BERT, rules=["gelu.from_tanh_form"])
    assert found.absent == {
        "gelu.from_tanh_form": "the sites are those of other rules of the family: gelu.from_erf_form (2), gelu.add_bias_to_bias_gelu (2)"
    }
    absent = ortfuse.explain(BERT, rules=["layernorm"]).absent
    assert "no ReduceMean" in absent["layernorm.from_decomposed_form"]
    assert "there already: 5 LayerNormalization" in absent["layernorm.from_decomposed_form"]


def test_a_pipeline_without_fusions_is_said_to_be_the_reason() -> None:
    found = ortfuse.explain(model(), passes="canonicalize", rules=["gelu.from_erf_form"])
    assert found.absent == {"gelu.from_erf_form": "the pipeline does not run fuse.activation"}
    assert any("the pipeline runs no fusions: canonicalize" in note for note in found.notes)
    assert not ortfuse.explain(model()).notes


@pytest.mark.parametrize(
    "body",
    [
        "s = Sigmoid(x) y = Mul(s, z)",  # a gated linear unit, not a swish gone wrong
        "s = Mul(x, z) y = Add(s, w)",  # no affine map of channels
        "s = Add(x, z) y = Relu(s)",  # no residual convolution
        "s = Less(x, w) y = Where(s, z, x)",  # no leaky ReLU
    ],
)
def test_plain_arithmetic_is_no_near_miss(body: str) -> None:
    text = f"g (float[4,3] x, float[4,3] z, float[4,3] w) => (float[4,3] y) {{ {body} }}"
    found = ortfuse.explain(ir.from_onnx_text('<ir_version: 9, opset_import: ["": 18]>' + text))
    assert found.missed == ()


@pytest.mark.parametrize("name", ["bert.sdpa.ts", "detr.sdpa.dynamo", "deberta.dynamo", "t5_decoder.sdpa.ts"])
def test_a_model_whose_sites_are_all_fused_has_no_near_miss(name: str) -> None:
    found = ortfuse.explain(GOLDEN / f"{name}.onnx")
    assert found.fused
    assert [(miss.rule, miss.site) for miss in found.missed] == []


def test_two_nodes_kept_apart_by_another_use_are_a_near_miss() -> None:
    text = "g (float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,4,4] c) <float[2,2,1,1] w = {1, 2, 3, 4}, float[2] s = {1, 2}, "
    text += "float[2] b = {1, 2}, float[2] m = {1, 2}, float[2] v = {1, 2}> { c = Conv(x, w) y = BatchNormalization(c, s, b, m, v) }"
    (miss,) = ortfuse.explain(ir.from_onnx_text('<ir_version: 9, opset_import: ["": 18]>' + text)).missed
    assert (miss.rule, miss.step, miss.matched) == ("compose_linear_maps", "guards", 1)
    assert "'c' is a graph output" in miss.refusal.reason


ATTENTION = "g (float[1,2,4,8] q, float[1,2,8,4] k, float[1,2,4,8] v) => (float[1,2,4,8] y)"


@pytest.mark.parametrize(
    ("between", "code", "words"),
    [
        ("p = Softmax<axis=1>(a)", "attribute", "axis of Softmax '' were -1"),
        ("w = Softmax<axis=-1>(a) p = Sin(w)", "operator", "'p' were computed by"),
    ],
)
def test_every_softmax_that_is_left_has_a_near_miss_of_attention(between: str, code: str, words: str) -> None:
    text = f'<ir_version: 9, opset_import: ["": 18]> {ATTENTION} {{ a = MatMul(q, k) {between} y = MatMul(p, v) }}'
    (miss,) = ortfuse.explain(ir.from_onnx_text(text), rules=["attention"]).missed
    assert (miss.site, miss.refusal.code) == ("y", code)
    assert words in miss.refusal.remedy
    assert ortfuse.explain(ir.from_onnx_text(text)).missed == ()


def damaged(name: str, part: str, shape: list[int | str | None]) -> ir.Model:
    """A golden model whose last attention takes its mask or key from a new input of this shape."""
    found = load(GOLDEN / f"{name}.onnx")
    node = [node for node in found.graph if node.op_type == "Softmax"][-1].inputs[0].producer()  # type: ignore[union-attr]
    assert node is not None
    scores = next(v.producer() for v in node.inputs if v is not None and v.producer().op_type == "MatMul")  # type: ignore[union-attr]
    assert scores is not None
    user, index = (scores, 1) if part == "key" else (node, [v.producer() for v in node.inputs if v].index(scores) ^ 1)
    value = ir.Value(name="damaged", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
    found.graph.inputs.append(value)
    user.replace_input_with(index, value)
    return found


@pytest.mark.parametrize("name", ["bert.sdpa.ts", "bert.sdpa.dynamo", "llama.sdpa.dynamo"])
@pytest.mark.parametrize(
    ("part", "shape", "words"),
    [
        ("mask", [1, 3, 1, 1], "dimension 1 of 'damaged' (mask) is 3, not provably 4, which is h"),
        ("mask", [1, 1, 1, 1, 1], "'damaged' (mask) has the shape [1, 1, 1, 1, 1], not provably [b?, h?, s?, _]"),
        ("key", ["batch", 4, 7, "sequence"], "dimension 2 of 'damaged' (transposed) is 7, not provably 8, which is d"),
    ],
)
def test_what_is_wrong_with_an_attention_is_named_however_its_heads_are_split(
    name: str, part: str, shape: list[int | str | None], words: str
) -> None:
    found = ortfuse.explain(damaged(name, part, shape), rules=["attention"])
    assert [words in miss.refusal.reason for miss in found.missed] == [True]


def test_the_words_of_a_miss_are_those_of_its_fields() -> None:
    data = ortfuse.explain(model(root="1.5")).to_dict()["missed"][0]["refusal"]
    assert (data["code"], data["subject"]) == ("coefficient", {"kind": "value", "name": "a"})
    assert (data["found"], data["needed"]) == ("0.6666667", "0.7071068")
    assert data["found"] in data["reason"]
    assert data["needed"] in data["remedy"]


def test_an_unknown_rule_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RuleError, match="did you mean 'attention'"):
        ortfuse.explain(model(), rules=["attenton"])


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (op.Relu(x), 1),
        (x + y, 1),
        (x * 0.5 * (1 + op.Erf(x / 2**0.5)), 5),
        (op.Relu(op.Add(x, y)) | op.Relu(x), 1),
        (op.Relu(opt(op.Tanh(x))), 1),
        ((shared := op.Exp(x)) / (shared + y), 3),
        (scalar("s") * x, 0),
    ],
)
def test_the_least_number_of_nodes_counts_shared_parts_once_and_optional_ones_not(pattern: object, count: int) -> None:
    assert least_nodes(pattern) == count  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["bert.sdpa.ts", "bert.eager.raw", "gpt2_cache.sdpa.ts", "gemma.sdpa.ts", "llama.sdpa.dynamo", "resnet.tsbn"],
)
def test_every_fused_node_in_the_file_says_what_it_stands_for(name: str, tmp_path: Path) -> None:
    original = load(GOLDEN / f"{name}.onnx")
    names = {node.name for node in original.graph}
    operators = {*(node.op_type for node in original.graph), "Squeeze"}  # which passes make of sizes
    result = ortfuse.optimize(original)
    save(result.model, tmp_path / "out.onnx")
    made = [node for node in onnx.load(tmp_path / "out.onnx").graph.node if node.op_type not in operators]
    assert made
    for node in made:
        metadata = {item.key: item.value for item in node.metadata_props}
        assert "." in metadata[RULE_KEY]
        assert set(metadata[NODES_KEY].split(";")) <= names


def test_explain_on_the_command_line(run: Callable[..., str]) -> None:
    text = run("explain", str(LLAMA), "--rule", "rmsnorm", "--max-opset", "17")
    assert "rmsnorm.from_decomposed_form at 5 sites, '/module/model/norm/Mul_output_0'" in text
    assert "stopped by: RMSNormalization needs opset 23" in text
    assert "would match if the result were allowed opset 23" in text
    assert "all of the pattern matched, 6 nodes" in text
    text = run("explain", str(BERT))
    assert "attention.drop_key_bias" in text
    assert "no other site comes near to a fusion" in text


@pytest.fixture
def run() -> Callable[..., str]:
    from typer.testing import CliRunner

    from ortfuse.cli.app import app

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    return invoke


def test_a_softmax_that_no_product_takes_is_named_with_what_takes_it() -> None:
    pooled = model("s = Softmax<axis = 1>(x) y = Mul(s, x)")
    (miss,) = ortfuse.explain(pooled, ["attention"]).missed
    assert (miss.rule, miss.site, miss.root) == ("attention.sdpa", "s", "Softmax ''")
    assert miss.refusal.reason == "'s' goes to Mul '', and no MatMul comes of it"
    assert miss.refusal.remedy == "'s' were an operand of MatMul"
    (miss,) = ortfuse.explain(model("y = Softmax<axis = 1>(x)"), "attention").missed
    assert miss.refusal.reason == "'y' goes to an output of the model, and no MatMul comes of it"


def test_scores_that_are_no_product_are_named_with_what_computes_them() -> None:
    weighted = model(
        "t = Sin(x) s = Softmax<axis = 1>(t) u = Transpose<perm = [1, 0]>(x) y = MatMul(s, u)", "float[b,b] y"
    )
    weighted.graph.inputs[0].shape = ir.Shape(["b", "b"])
    (miss,) = ortfuse.explain(weighted, ["attention"]).missed
    assert "no part of 't', which Sin '' computes, is computed by MatMul" in miss.refusal.reason
    assert "'t', or a part of it, were computed by MatMul" in miss.refusal.remedy


def test_what_is_made_on_request_is_missed_by_none_but_those_who_ask_for_it() -> None:
    assert not [site for site in ortfuse.explain(BERT).missed if site.rule.startswith("ffn.")]
    found = ortfuse.explain(BERT, rules=["ffn"])
    sites = [site for site in found.missed if site.refusal.code == "unasked"]
    assert len(sites) == 2
    assert not found.fused
    assert {site.refusal.remedy for site in sites} == {"it were asked for: --force ffn=ortfuse.FeedForwardGelu"}
    assert not ortfuse.explain(
        model("a = Relu(x) b = Abs(x) c = Neg(b) d = Exp(c) e = Add(d, r) f = Log(e) y = Add(a, f)", root="1"),
        rules=["softplus"],
    ).fused


_SCORES = "t = Transpose<perm = [0, 1, 3, 2]>(k) p = MatMul(q, t) s = Mul(p, half)"


@pytest.mark.parametrize("asked", ["attention", "attention.sdpa"])
@pytest.mark.parametrize(
    ("masked", "site", "rule"),
    [
        ("m = Where(hide, low, s)", "m", "finite_fill_where_to_additive_mask"),
        ("w = Where(hide, low, s) m = Add(w, bias)", "w", "finite_fill_where_to_additive_mask"),
        ("w = Where(hide, low, p) m = Mul(w, half)", "w", "finite_fill_where_to_additive_mask"),
        ("m = Max(s, low)", "m", "max_with_floor_to_mask"),
    ],
)
def test_a_filler_that_may_not_hide_is_told_whichever_rule_is_asked_for(
    masked: str, site: str, rule: str, asked: str
) -> None:
    """Rules that prepare masks say more than the rule that finds no product where the Where is."""
    found = ortfuse.explain(
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 18]>
        g (float[b,2,7,4] q, float[b,2,7,4] k, float[b,2,7,4] v, bool[b,1,7,7] hide, float[b,1,7,7] bias) => (float[b,2,7,4] y)
        <float half = {{0.5}}, float low = {{-1000.0}}> {{ {_SCORES} {masked} w_ = Softmax<axis = -1>(m) y = MatMul(w_, v) }}"""),
        rules=[asked],
    )
    (miss,) = found.missed
    assert (miss.rule, miss.site) == (f"attention.{rule}", site)
    assert "'low'" in str(miss.refusal) and "-1000" in str(miss.refusal)
    assert not found.absent


def test_scores_that_are_something_else_are_told_as_such() -> None:
    found = ortfuse.explain(
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 18]>
        g (float[b,2,7,4] q, float[b,2,7,4] k, float[b,2,7,4] v, bool[b,1,7,7] hide) => (float[b,2,7,4] y)
        <float half = {{0.5}}, float low = {{-1000.0}}> {{ {_SCORES} u = Sigmoid(s) m = Where(hide, low, u)
        w = Softmax<axis = -1>(m) y = MatMul(w, v) }}"""),
        rules=["attention.sdpa"],
    )
    (miss,) = found.missed
    assert miss.rule == "attention.sdpa" and "MatMul" in str(miss.refusal)
