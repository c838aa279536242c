"""What the target says about kernels, held against what the runtime does when it is asked to run a node."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

from ortfuse.analysis.facts import Facts
from ortfuse.errors import TargetError
from ortfuse.targets import Target


@pytest.fixture(scope="module")
def target() -> Target:
    return Target()


def loads(opset: int) -> bool:
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


def test_the_newest_opset_is_one_that_the_runtime_loads_and_the_next_is_not(target: Target) -> None:
    assert loads(target.max_opset)
    assert target.max_opset == onnx.defs.onnx_opset_version() or not loads(target.max_opset + 1)


def test_the_user_can_lower_the_newest_opset_and_not_raise_it(target: Target) -> None:
    assert Target(max_opset=17).max_opset == 17
    assert Target(max_opset=999).max_opset == target.max_opset
    with pytest.raises(TargetError, match="numbered from 1"):
        Target(max_opset=0)


def test_an_opset_above_the_limit_is_refused_also_after_the_limit_was_lowered() -> None:
    target = Target()
    assert target.supports("", "Gelu", 20, ["float"])
    target.max_opset = 17
    assert not target.supports("", "Gelu", 20, ["float"])
    assert str(target.refusal("", "Gelu", 20, ["float"])) == "Gelu needs opset 20, and at most 17 is allowed"


@pytest.mark.parametrize(
    ("domain", "op_type", "opset", "inputs", "reason"),
    [
        ("", "Gelu", 20, ["float"], ""),
        ("", "Gelu", 19, ["float"], "does not exist before opset 20"),
        ("", "Gelu", 20, ["float16"], "no kernel for Gelu at version 20 on float16"),
        ("", "Swish", 24, ["float"], "no kernel for Swish at version 24"),
        ("", "Attention", 23, ["float16", "float16", "float16", "bool"], ""),
        ("", "Attention", 23, ["float", "float", "float", "", "float", "float"], ""),
        ("", "Attention", 23, ["double"] * 3, "on double"),
        ("", "Add", 14, ["float", "int64"], "wants one type T, not both float and int64"),
        ("", "Add", 14, ["float", "float", "float"], "takes at most 2 inputs, not 3"),
        ("", "Concat", 13, ["float"] * 40, ""),
        ("", "Not", 1, ["float"], "does not take float as X"),
        ("", "Upsample", 10, ["float", "float"], "no longer part of its domain"),
        ("", "NoSuchOperator", 17, [], "knows no operator NoSuchOperator"),
        ("com.microsoft", "BiasGelu", 1, ["float", "float"], ""),
        ("com.microsoft", "BiasGelu", 1, ["float16", "float16"], "on float16"),
        ("com.microsoft", "SkipLayerNormalization", None, ["float16"] * 4, ""),
        ("com.nobody", "Thing", 1, ["float"], "knows no operator com.nobody.Thing"),
    ],
)
def test_support_by_operator_version_and_types(
    target: Target, domain: str, op_type: str, opset: int | None, inputs: list[str], reason: str
) -> None:
    refusal = target.refusal(domain, op_type, opset, inputs)
    assert (refusal is None) is (reason == "")
    assert refusal is None or reason in refusal.reason


def test_types_can_be_named_as_the_specification_names_them(target: Target) -> None:
    assert target.supports("", "LayerNormalization", 17, {"T": "float16"})
    assert not target.supports("", "LayerNormalization", 17, {"T": "int32"})
    assert "no input, output or type constraint 'Q'" in str(target.refusal("", "Add", 14, {"Q": "float"}))


def test_a_dtype_of_the_graph_and_its_name_and_its_onnx_type_are_the_same(target: Target) -> None:
    for spelling in (ir.DataType.FLOAT, "float", "float32", "tensor(float)"):
        assert target.supports("", "Gelu", 20, [spelling])


def test_an_unknown_type_is_accepted_only_where_it_cannot_matter(target: Target) -> None:
    # The mask of Attention may also be of integers, for which there is no kernel.
    refusal = target.refusal("", "Attention", 23, ["float", "float", "float", None])
    assert "unknown type of attn_mask" in str(refusal)
    # The second input has the type of the first, and a shape can only be int64.
    assert target.supports("", "Add", 14, ["float", None])
    assert target.supports("", "Reshape", 14, ["float", None])


def test_the_open_end_of_a_kernel_does_not_reach_over_a_new_definition(target: Target) -> None:
    # RoiAlign has a kernel from 16 on, but its definition changed in 22 and nobody registered a kernel for that.
    assert target.supports("", "RoiAlign", 21, ["float", "float", "int64"])
    assert not target.supports("", "RoiAlign", 22, ["float", "float", "int64"])


def test_early_versions_that_only_the_runtime_has_are_not_onnx(target: Target) -> None:
    assert not target.supports("", "LayerNormalization", 16, ["float", "float"])


def test_operators_of_the_runtimes_own_in_the_domain_of_onnx_are_known(target: Target) -> None:
    assert target.supports("", "SimplifiedLayerNormalization", 17, ["float", "float"])


def test_smallest_opset_with_a_kernel(target: Target) -> None:
    assert target.min_opset("Gelu", "", ["float"]) == 20
    assert target.min_opset("Gelu", "", ["float16"]) is None
    assert target.min_opset("Attention", "", ["float"] * 3) == 23
    assert target.min_opset("BiasGelu", "com.microsoft", ["float"] * 2) == 1
    assert Target(max_opset=19).min_opset("Gelu", "", ["float"]) is None
    assert target.min_opset("NoSuchOperator") is None


def test_a_stored_table_gives_the_same_target(target: Target, tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "table.json"
    target.to_table(path)
    stored = Target.from_table(path)
    assert stored.table == target.table
    assert (stored.provider, stored.max_opset) == (target.provider, target.max_opset)
    assert Target.from_table(path, max_opset=17).max_opset == 17


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99}', '{"format": 1}'])
def test_a_file_that_is_no_table_is_a_named_error(content: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(TargetError, match=r"table\.json"):
        Target.from_table(path)


def test_a_missing_table_and_an_unwritable_one_are_named_errors(target: Target, tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TargetError, match=r"nothing\.json"):
        Target.from_table(tmp_path / "nothing.json")
    with pytest.raises(TargetError, match="cannot be written"):
        target.to_table(tmp_path / "no" / "folder.json")


def test_a_provider_that_is_not_installed_is_a_named_error() -> None:
    with pytest.raises(TargetError, match=r"NoSuchExecutionProvider.*CPUExecutionProvider"):
        Target("NoSuchExecutionProvider")


def node_and_facts(text: str) -> tuple[ir.Node, Facts]:
    model = ir.from_onnx_text(text)
    return model.graph[-1], Facts(model)


def test_a_node_is_judged_by_its_types_and_by_the_import_of_its_domain(target: Target) -> None:
    node, facts = node_and_facts('<ir_version: 8, opset_import: ["" : 20]> g (float[2] x) => (y) { y = Gelu(x) }')
    assert target.check_node(node, {"": 20}, facts) is None
    assert target.check_node(node, {"": 17}, facts) is not None
    node, facts = node_and_facts('<ir_version: 8, opset_import: ["" : 20]> g (float16[2] x) => (y) { y = Gelu(x) }')
    assert "float16" in str(target.check_node(node, {"": 20}, facts))


def test_the_version_of_a_node_goes_before_the_import(target: Target) -> None:
    node, facts = node_and_facts('<ir_version: 8, opset_import: ["" : 20]> g (float[2] x) => (y) { y = Gelu(x) }')
    node.version = 20
    assert target.check_node(node, {"": 17}, facts) is None
    assert Target(max_opset=17).check_node(node, {"": 17}, facts) is not None


def test_inputs_that_are_left_out_do_not_count_as_unknown(target: Target) -> None:
    node, facts = node_and_facts(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2,4,4] x, int64[3] s) => (y) { y = Resize(x, , , s) }'
    )
    assert node.inputs[1] is None
    assert target.check_node(node, {"": 18}, facts) is None
