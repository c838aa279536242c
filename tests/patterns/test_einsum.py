"""Einsum: what becomes of an equation, and which are left alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import ops, parse, rewritten, same

import ortfuse
from ortfuse.verification import verify


def model(equation: str, *shapes: str, result: str, dtype: str = "float") -> ir.Model:
    inputs = ", ".join(f"{dtype}[{shape}] x{index}" for index, shape in enumerate(shapes))
    operands = ", ".join(f"x{index}" for index in range(len(shapes)))
    return parse(
        f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => ({dtype}[{result}] y) '
        f'{{ y = Einsum<equation = "{equation}">({operands}) }}'
    )


@pytest.mark.parametrize(
    ("equation", "shapes", "result"),
    [
        ("...ij,...jk->...ik", ("2,s,4", "1,4,t"), "2,s,t"),
        ("ii->i", ("3,3",), "3"),
        ("bhwc,hkc->bhwk", ("b,h,w,4", "h,t,4"), "b,h,w,t"),
        ("ij,jk->ik", ("s,u", "v,t"), "s,t"),
        ("ij,jk->ik", ("s,1", "5,t"), "s,t"),
        ("ijm,jk->ijmk", ("s,t", "t,2"), "s,2"),
        ("ij", ("s,t", "t,2"), "s,2"),
    ],
    ids=["ellipsis that broadcasts", "diagonal", "rows unknown", "sizes unknown", "broadcast",
         "too many labels", "too few operands"],
)  # fmt: skip
def test_an_equation_that_is_no_product_is_left_alone(equation: str, shapes: tuple[str, ...], result: str) -> None:
    assert ops(rewritten(model(equation, *shapes, result=result), "fuse.einsum")) == "Einsum"


def test_of_open_rows_a_product_for_each_of_a_known_number_is_made() -> None:
    m = model("bgrqd,bgkd->bgrqk", "b,2,3,s,4", "b,2,t,4", result="b,2,3,s,t")
    assert ops(rewritten(m, "fuse.einsum")) == "Transpose Unsqueeze MatMul"


@pytest.mark.parametrize(
    ("equation", "shapes", "result", "made"),
    [
        ("ij,jk", ("2,3", "3,4"), "2,4", "MatMul"),
        ("ba", ("2,3",), "3,2", "Transpose"),
        (" b i j -> b ", ("2,3,4",), "2", "Transpose ReduceSum"),
        ("i j , j i -> j i", ("3,4", "4,3"), "4,3", "Transpose Mul"),
        ("bij,bj->bij", ("2,3,4", "2,4"), "2,3,4", "Unsqueeze Mul"),
        ("i,j->ji", ("3", "4"), "4,3", "Unsqueeze Unsqueeze Mul"),
        ("hnd,bh->bdn", ("3,2,4", "5,3"), "5,4,2", "Transpose Transpose MatMul Transpose"),
        ("hnd,hmb->bdnm", ("3,2,4", "3,6,5"), "5,4,2,6", "Transpose Transpose Reshape MatMul Reshape Transpose"),
        ("bjhd,bihd->bhij", ("2,5,3,4", "2,6,3,4"), "2,3,6,5", "Transpose Transpose MatMul"),
        ("...ij,...jk->...ik", ("2,3,4", "2,4,5"), "2,3,5", "MatMul"),
        ("...d,df->...f", ("2,3,4", "4,5"), "2,3,5", "MatMul"),
        ("fd, ...d -> ...f", ("5,4", "2,3,4"), "2,3,5", "Transpose MatMul"),
        ("...ij,...jk", ("2,3,4", "2,4,5"), "2,3,5", "MatMul"),
        ("i...j->j...i", ("2,3,4",), "4,3,2", "Transpose"),
        ("...i,ij,jk->...k", ("2,3,4", "4,5", "5,6"), "2,3,6", "MatMul MatMul"),
        ("...i,ij->...j", ("4", "4,5"), "5", "MatMul"),
        ("...hqk, ...khd -> ...qhd", ("2,2,3,4,5", "2,2,5,3,6"), "2,2,4,3,6", "Transpose MatMul Transpose"),
        ("bij,bj->bi", ("2,3,4", "2,4"), "2,3", "Unsqueeze MatMul Squeeze"),
        ("bhj,bhij->bih", ("2,5,4", "2,5,3,4"), "2,3,5", "Unsqueeze MatMul Squeeze Transpose"),
        ("bqd,bqd->bq", ("2,3,4", "2,3,4"), "2,3", "Mul ReduceSum"),
        ("bij,jib->b", ("2,3,4", "4,3,2"), "2", "Transpose Mul ReduceSum"),
        ("ij,kl->il", ("2,3", "4,5"), "2,5", "Transpose ReduceSum Transpose ReduceSum Unsqueeze Unsqueeze Mul"),
        ("ij,jk,kl,lm->im", ("2,3", "3,4", "4,5", "5,6"), "2,6", "MatMul MatMul MatMul"),
        ("i,ij,jk,k->k", ("2", "2,3", "3,4", "4"), "4", "MatMul MatMul Mul"),
        ("bgrqd,bgkd->bgrqk", ("2,2,3,8,4", "2,2,5,4"), "2,2,3,8,5", "Transpose Unsqueeze MatMul"),
        ("bgrqk,bkgd->bqgrd", ("2,2,3,8,5", "2,5,2,4"), "2,8,2,3,4", "Transpose Unsqueeze MatMul Transpose"),
        ("BhwC,hkC->Bhwk", ("2,3,9,4", "3,5,4"), "2,3,9,5", "Transpose MatMul"),
    ],
)
def test_an_equation_is_what_it_says(equation: str, shapes: tuple[str, ...], result: str, made: str) -> None:
    before = model(equation, *shapes, result=result)
    after = rewritten(before, "fuse.einsum")
    assert ops(after) == made
    rng = np.random.default_rng(0)
    inputs = {
        f"x{index}": rng.standard_normal([int(dim) for dim in shape.split(",")]).astype(np.float32)
        for index, shape in enumerate(shapes)
    }
    same(before, after, inputs)


def test_a_weight_is_a_constant_matrix_on_the_right() -> None:
    m = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[s,b,3] x) => (float[s,b,2,2] y)
        <float[3,2,2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0}>
        { y = Einsum<equation = "hnd,sbh->sbnd">(w, x) }"""
    )
    result = ortfuse.optimize(m)
    assert verify(m, result.model).ok
    assert ops(result.model) == "MatMul Reshape"
    product = next(node for node in result.model.graph if node.op_type == "MatMul")
    assert product.inputs[0] is result.model.graph.inputs[0]


@pytest.mark.parametrize(
    ("scores", "values", "heads_first"),
    [
        ("bhld,bhrd->bhlr", "bhlr,bhrd->bhld", True),
        ("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", False),
        ("bkhd,bqhd->bhqk", "bkhd,bhqk->bqhd", False),
    ],
)
def test_attention_by_einsum_is_attention(scores: str, values: str, heads_first: bool) -> None:
    shapes = ["b,2,s,4", "b,2,t,4"] if heads_first else ["b,s,2,4", "b,t,2,4"]
    pair = ("k, q", "v, p") if scores.startswith("bk") else ("q, k", "p, v")
    m = parse(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[{shapes[0]}] q, float[{shapes[1]}] k, float[{shapes[1]}] v)
        => (float[{shapes[0]}] y) <float scale = {{0.5}}> {{ qk = Einsum<equation = "{scores}">({pair[0]}) s = Mul(qk, scale)
        p = Softmax<axis = 3>(s) y = Einsum<equation = "{values}">({pair[1]}) }}"""
    )
    result = ortfuse.optimize(m)
    assert verify(m, result.model).ok
    kinds = [node.op_type for node in result.model.graph]
    assert kinds.count("Attention") == 1
    assert not {"Softmax", "MatMul", "Einsum"} & set(kinds)


def test_relative_positions_and_a_mask_taken_off_are_one_bias() -> None:
    """XLNet adds a product with positions before it scales, and subtracts what hides a key."""
    m = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[s,b,2,4] q, float[t,b,2,4] k, float[t,b,2,4] v, float[t,b,2,4] r,
            bool[b,1,s,t] hide) => (float[s,b,2,4] y) <float scale = {0.5}, float large = {1e30}> {
        ac = Einsum<equation = "ibnd,jbnd->bnij">(q, k) bd = Einsum<equation = "ibnd,jbnd->bnij">(q, r) sum = Add(ac, bd)
        scaled = Mul(sum, scale) h = Cast<to = 1>(hide) mask = Mul(large, h) s = Sub(scaled, mask) p = Softmax<axis = 3>(s)
        y = Einsum<equation = "bnij,jbnd->ibnd">(p, v) }"""
    )
    result = ortfuse.optimize(m)
    assert verify(m, result.model).ok
    assert [node.op_type for node in result.model.graph].count("Attention") == 1


@pytest.mark.parametrize(
    ("equation", "shapes", "result", "products"),
    [
        ("ij,jk,kl->il", ("s,3", "3,4", "4,t"), "s,t", 2),
        ("bhld,lrd,hr->bhl", ("b,12,9,4", "9,5,4", "12,5"), "b,12,9", None),
        ("ij,kl,jk->il", ("s,3", "4,5", "3,4"), "s,5", 2),
    ],
)
def test_three_operands_are_taken_two_by_two(
    equation: str, shapes: tuple[str, ...], result: str, products: int | None
) -> None:
    original = model(equation, *shapes, result=result)
    changed = rewritten(original, "fuse.einsum")
    if products is not None:
        assert ops(changed).split().count("MatMul") == products
        assert "Einsum" not in ops(changed)
    random = np.random.default_rng(0)
    sizes = {"s": 6, "t": 5, "b": 2}
    same(
        original,
        changed,
        {
            f"x{number}": random.standard_normal([sizes.get(dim) or int(dim) for dim in shape.split(",")]).astype(
                np.float32
            )
            for number, shape in enumerate(shapes)
        },
    )
