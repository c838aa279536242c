"""PackedMultiHeadAttention, which no CPU kernel computes, as functions of standard operators: one for each way of its kernels."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

_HEAD = '<domain: "packed", opset_import: ["": 18]> {name} (q, k, v, slots, ends) => (y) {{ '
_CONSTANTS = """zero = Constant <value_ints: ints = [0]> ()  one = Constant <value_ints: ints = [1]> ()
    none = Constant <value_int: int = 0> ()  step = Constant <value_int: int = 1> ()  all = Constant <value_ints: ints = [-1]> ()
    far = Constant <value_ints: ints = [1000000]> ()  heads = Constant <value_ints: ints = [{heads}]> ()
    {scale}  low = Constant <value_float: float = -inf> ()
    e = Cast <to = 7> (ends)  tokens = Shape <start = 0, end = 1> (q)  count = Squeeze(tokens)
    after = Slice(e, one, far)  before = Slice(e, zero, all) """

_SCALES = {
    True: "scale = Constant <value_float: float = {scale}> ()",
    False: """h = Shape <start = 1, end = 2> (q)  width = Div(h, heads)  f0 = Cast <to = 1> (width)  root = Sqrt(f0)
    scale = Reciprocal(root)""",
}
"""The scale that a node gives, or one by the size of its heads."""

_PADDED = """sizes = Shape(slots)  length = Slice(sizes, one, far)  s = Squeeze(length)  f = Cast <to = 7> (slots)
    flat = Reshape(f, all)  places = Unsqueeze(flat, one)  n = Size(slots)  n1 = Unsqueeze(n, zero)  rest = Sub(n1, tokens)
    split = Concat <axis = 0> (sizes, heads, all)
    {parts}
    kt = Transpose <perm = [0, 1, 3, 2]> (kh)  s0 = MatMul(qh, kt)  s1 = Mul(s0, scale)
    lengths = Sub(after, before)  l1 = Unsqueeze(lengths, one)  numbers = Range(none, s, step)  in = Less(numbers, l1)
    ends4 = Constant <value_ints: ints = [1, 2]> ()  wide = Unsqueeze(in, ends4)  s2 = Where(wide, s1, low)
    w = Softmax <axis = -1> (s2)  a = MatMul(w, vh)  b = Transpose <perm = [0, 2, 1, 3]> (a)
    wv = Shape <start = 1, end = 2> (v)  rows = Concat <axis = 0> (all, wv)  c = Reshape(b, rows)
    own = Slice(flat, zero, tokens)  y = Gather <axis = 0> (c, own) }}"""
"""Tokens go to their places in a padded batch, of which all that is left is 0, and what nothing writes is NaN."""

_PART = """{x}w = Shape <start = 1, end = 2> ({x})  {x}g = Concat <axis = 0> (n1, {x}w)
    {x}n = ConstantOfShape <value: tensor = float[1] {{nan}}> ({x}g)  {x}e = Concat <axis = 0> (rest, {x}w)
    {x}z = ConstantOfShape({x}e)  {x}u = Concat <axis = 0> ({x}, {x}z)  {x}s = ScatterND({x}n, places, {x}u)
    {x}4 = Reshape({x}s, split)  {x}h = Transpose <perm = [0, 2, 1, 3]> ({x}4) """

_VARIABLE = """i = Range(none, count, step)  i1 = Unsqueeze(i, one)  is_behind = GreaterOrEqual(i1, after)
    ones = Cast <to = 7> (is_behind)  of = ReduceSum <keepdims = 0> (ones, one)  o0 = Unsqueeze(of, zero)
    o1 = Unsqueeze(of, one)  same = Equal(o0, o1)  split = Concat <axis = 0> (tokens, heads, all)
    q3 = Reshape(q, split)  qh = Transpose <perm = [1, 0, 2]> (q3)  k3 = Reshape(k, split)
    kt = Transpose <perm = [1, 2, 0]> (k3)  v3 = Reshape(v, split)  vh = Transpose <perm = [1, 0, 2]> (v3)
    s0 = MatMul(qh, kt)  s1 = Mul(s0, scale)  s2 = Where(same, s1, low)  w = Softmax <axis = -1> (s2)  a = MatMul(w, vh)
    b = Transpose <perm = [1, 0, 2]> (a)  wv = Shape <start = 1, end = 2> (v)  rows = Concat <axis = 0> (all, wv)
    y = Reshape(b, rows) }}"""
"""Each token attends to those between the same ends; the places are not read."""

BODIES = {
    "padded": _PADDED.replace("{parts}", "".join(_PART.replace("{x}", one) for one in "qkv")),
    "variable lengths": _VARIABLE,
}
"""The ways in which kernels compute it: without a fused kernel, and by those for sequences of several lengths."""


def as_functions(model: onnx.ModelProto, body: str) -> tuple[onnx.ModelProto, int]:
    """Return a copy of a model with functions in place of its PackedMultiHeadAttention nodes, and their number."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    functions: dict[str, onnx.FunctionProto] = {}
    number = 0
    for node in [one for one in _nodes(found.graph) if one.op_type == "PackedMultiHeadAttention"]:
        number += 1
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        heads, given = attributes["num_heads"], "scale" in attributes
        scale = _SCALES[given].format(scale=attributes.get("scale"))
        name = f"attention_{len(functions)}"
        functions[name] = onnx.parser.parse_function(
            (_HEAD + _CONSTANTS + BODIES[body]).format(name=name, heads=heads, scale=scale)
        )
        query, key, value, bias, slots, ends = node.input[:6]
        assert not bias
        node.domain, node.op_type = "packed", name
        del node.attribute[:], node.input[:]
        node.input.extend([query, key, value, slots, ends])
    found.functions.extend(functions.values())
    found.opset_import.append(onnx.helper.make_opsetid("packed", 1))
    return found, number


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
