"""Pixel shuffle and unshuffle, as exporters spell them, become DepthToSpace and SpaceToDepth."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.verification import verify


def shuffle(x: str, split: list[int], perm: list[int], merged: list[int]) -> ir.Model:
    return ir.from_proto(
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g (float[{x}] x) => (float[n, k1, k2, k3] y) {{
            s = Constant<value_ints = {split}>() t = Constant<value_ints = {merged}>()
            a = Reshape(x, s) b = Transpose<perm = {perm}>(a) y = Reshape(b, t) }}""")
    )


ONE_NODE = {
    "pixel shuffle": (("n,12,4,5", [-1, 3, 2, 2, 4, 5], [0, 1, 4, 2, 5, 3], [-1, 3, 8, 10]), ["DepthToSpace"]),
    "of one channel": (("n,9,4,5", [-1, 1, 3, 3, 4, 5], [0, 1, 4, 2, 5, 3], [-1, 1, 12, 15]), ["DepthToSpace"]),
    "depth first": (("n,12,4,5", [-1, 2, 2, 3, 4, 5], [0, 3, 4, 1, 5, 2], [-1, 3, 8, 10]), ["DepthToSpace"]),
    "space to depth": (("n,3,8,10", [-1, 3, 4, 2, 5, 2], [0, 3, 5, 1, 2, 4], [-1, 12, 4, 5]), ["SpaceToDepth"]),
}


@pytest.mark.parametrize(("model", "operators"), ONE_NODE.values(), ids=ONE_NODE)
def test_a_shuffle_is_one_node(model: tuple[str, list[int], list[int], list[int]], operators: list[str]) -> None:
    result = ortfuse.optimize(shuffle(*model))
    assert [node.op_type for node in result.model.graph] == operators
    assert verify(shuffle(*model), result.model).ok


def test_an_unshuffle_moves_whole_planes() -> None:
    model = "n,3,8,10", [-1, 3, 4, 2, 5, 2], [0, 1, 3, 5, 2, 4], [-1, 12, 4, 5]
    result = ortfuse.optimize(shuffle(*model))
    assert [node.op_type for node in result.model.graph] == ["SpaceToDepth", "Gather"]
    assert verify(shuffle(*model), result.model).ok


def optimised(body: str, x: str) -> list[str]:
    """The operators that are left of a text, which computes the same."""
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[{x}] x) => (float[k0, k1, k2, k3] y) {{ {body} }}'
    result = ortfuse.optimize(ir.from_proto(onnx.parser.parse_model(text)))
    assert verify(ir.from_proto(onnx.parser.parse_model(text)), result.model).ok
    return [node.op_type for node in result.model.graph]


def ints(**numbers: list[int]) -> str:
    return " ".join(f"{name} = Constant<value_ints = {value}>()" for name, value in numbers.items())


@pytest.mark.parametrize("split", ["2, 2, 3", "3, 2, 2"])
def test_a_shuffle_with_channels_last_is_one_node(split: str) -> None:
    perm = "0, 1, 3, 2, 4, 5" if split == "2, 2, 3" else "0, 1, 4, 2, 5, 3"
    body = f"""s = Constant<value_ints = [-1, 4, 5, {split}]>() t = Constant<value_ints = [-1, 8, 10, 3]>()
        a = Transpose<perm = [0, 2, 3, 1]>(x) b = Reshape(a, s) c = Transpose<perm = [{perm}]>(b) d = Reshape(c, t)
        y = Transpose<perm = [0, 3, 1, 2]>(d)"""
    assert optimised(body, "n,12,4,5") == ["DepthToSpace"]


def test_an_unshuffle_of_torchscript_is_found_for_open_sizes() -> None:
    """It splits rows and columns one after the other, since each Reshape leaves only one size open."""
    known = ints(three=[3], rows=[0, 0, -1, 2, 0], columns=[0, 0, 0, 0, -1, 2], merged=[0, -1, 1, 1, 0, 0], ones=[2, 3])
    body = f"""{known} t = DepthToSpace<blocksize = 2>(x) d = Softmax<axis = 1>(t) u = Unsqueeze(d, three) a = Reshape(u, rows)
        b = Reshape(a, columns) c = Transpose<perm = [0, 1, 3, 5, 2, 4]>(b) e = Reshape(c, merged) y = Squeeze(e, ones)"""
    assert optimised(body, "n,12,h,w") == ["DepthToSpace", "Softmax", "SpaceToDepth", "Gather"]


@pytest.mark.parametrize(
    "model",
    [
        ("n,12,4,5", [-1, 3, 1, 4, 4, 5], [0, 1, 4, 2, 5, 3], [-1, 3, 4, 20]),
        ("n,12,4,5", [-1, 3, 2, 2, 4, 5], [0, 1, 4, 3, 5, 2], [-1, 3, 8, 10]),
    ],
    ids=["blocks that are not square", "blocks turned"],
)
def test_other_rearrangements_stay(model: tuple[str, list[int], list[int], list[int]]) -> None:
    assert "Transpose" in [node.op_type for node in ortfuse.optimize(shuffle(*model)).model.graph]
