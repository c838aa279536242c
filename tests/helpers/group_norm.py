"""com.microsoft GroupNorm and SkipGroupNorm, which no CPU kernel computes, as functions of standard operators."""

from __future__ import annotations

import onnx

_BODY = """<domain: "grouped", opset_import: ["": {opset}]> {name} (x, gamma, beta{more}) => ({results}) {{
    {sum}  wide = Cast <to = 1> (total)  sizes = Shape(wide)  front = Transpose <perm = [0, 3, 1, 2]> (wide)
    parts = Constant <value_ints: ints = [0, {groups}, -1]> ()  split = Reshape(front, parts)
    axis = Constant <value_ints: ints = [2]> ()  of = Shape(split)  last = Constant <value_ints: ints = [-1]> ()
    end = Constant <value_ints: ints = [9]> ()  count = Slice(of, last, end)  number = Cast <to = 1> (count)
    whole = ReduceSum(split, axis)  mean = Div(whole, number)  apart = Sub(split, mean)
    square = Mul(apart, apart)  squares = ReduceSum(square, axis)  spread = Div(squares, number)  epsilon = Constant <value_float: float = {epsilon}> ()
    more = Add(spread, epsilon)  root = Sqrt(more)  even = Div(apart, root)  shape = Shape(front)  merged = Reshape(even, shape)
    back = Transpose <perm = [0, 2, 3, 1]> (merged)  scaled = Mul(back, gamma)  plain = Add(scaled, beta)
    {activate}  {narrow} }}"""
_SWISH = "sigmoid = Sigmoid(plain)  active = Mul(plain, sigmoid)"


def as_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with functions in place of its GroupNorm and SkipGroupNorm nodes; itself if it has none."""
    if not any(node.op_type in ("GroupNorm", "SkipGroupNorm") for node in model.graph.node):
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    opset = next(one.version for one in model.opset_import if not one.domain)
    for number, node in enumerate(found.graph.node):
        if node.op_type not in ("GroupNorm", "SkipGroupNorm"):
            continue
        given = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        if not {"activation", "groups"} <= given.keys() or given.get("channels_last", 1) != 1:
            continue  # no kernel takes it either
        skips = node.op_type == "SkipGroupNorm"
        assert len(node.input) == (4 if skips else 3)
        name = f"{node.op_type}_{number}"
        text = _BODY.format(
            name=name,
            opset=opset,
            narrow="y = CastLike(active, x)" if opset >= 15 else "y = Identity(active)",
            more=", skip" if skips else "",
            results="y, total" if len(node.output) > 1 else "y",
            sum="total = Add(x, skip)" if skips else "total = Identity(x)",
            groups=given["groups"],
            epsilon=given.get("epsilon", 1e-5),
            activate=_SWISH if given["activation"] else "active = Identity(plain)",
        )
        found.functions.append(onnx.parser.parse_function(text))
        node.domain, node.op_type = "grouped", name
        del node.attribute[:]
    found.opset_import.append(onnx.helper.make_opsetid("grouped", 1))
    return found
