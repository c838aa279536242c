"""Operators on images with channels last as functions of the standard, for rule tests: a CPU has no kernels of them."""

from __future__ import annotations

import onnx_ir as ir

_ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid")
_HAS_CAST_LIKE = 15
"""The opset from which on CastLike exists."""


def group_norm(node: ir.Node, opset: int) -> str | None:
    """GroupNorm and SkipGroupNorm."""
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    is_last, adds = given.get("channels_last", 1) != 0, node.op_type == "SkipGroupNorm"
    if not {"activation", "groups"} <= given.keys() or given["activation"] not in (0, 1) or (adds and not is_last):
        return None
    names, total = ["x", "gamma", "beta"], "t = Identity(x)"
    if adds:
        names += ["skip", "bias"][: len(node.inputs) - 3]
        shape = node.inputs[3].shape if node.inputs[3] is not None else None
        axes = "[0, 1, 1, -1]" if shape is not None and len(shape) == 2 else "[0, 0, 0, -1]"
        both = "Add(term, bias)" if "bias" in names else "Identity(term)"
        total = f"ax = Constant <value_ints = {axes}> () term = Reshape(skip, ax) more = {both} t = Add(x, more)"
    front, back = (
        ("Transpose <perm = [0, 3, 1, 2]>", "Transpose <perm = [0, 2, 3, 1]>") if is_last else ("Identity",) * 2
    )
    rows = "[1, 1, -1]" if is_last else "[-1, 1, 1]"
    swish = "e = Neg(m) c = Exp(e) i = Add(one, c) o = Div(m, i)" if given["activation"] else "o = Identity(m)"
    half = node.inputs[0] is not None and node.inputs[0].dtype is ir.DataType.FLOAT16
    narrow = "CastLike(o, x)" if opset >= _HAS_CAST_LIKE else f"Cast <to = {10 if half else 1}> (o)"
    results = "y, t" if len(node.outputs) > 1 else "y"
    return f"""<domain: "any", opset_import: ["": {opset}]> any ({", ".join(names)}) => ({results}) {{
        {total}
        w = Cast <to = 1> (t) gw = Cast <to = 1> (gamma) hw = Cast <to = 1> (beta) f = {front} (w)
        p = Constant <value_ints = [0, {given["groups"]}, -1]> () k = Reshape(f, p) axis = Constant <value_ints = [2]> ()
        sh = Shape(k) at = Constant <value_int = 2> () many = Gather(sh, at) count = Cast <to = 1> (many)
        sum = ReduceSum(k, axis) n = Div(sum, count) a = Sub(k, n) q = Mul(a, a) qs = ReduceSum(q, axis) v = Div(qs, count)
        z = Constant <value_float = {given.get("epsilon", 1e-5)}> () u = Add(v, z) r = Sqrt(u) l = Div(a, r)
        j = Shape(f) d = Reshape(l, j) b = {back} (d) sizes = Constant <value_ints = {rows}> ()
        g = Reshape(gw, sizes) h = Reshape(hw, sizes) mm = Mul(b, g) m = Add(mm, h)
        one = Constant <value_float = 1.0> () {swish} y = {narrow} }}"""


def _attributes_of(node: ir.Node, *dropped: str) -> str:
    """The attributes of a node as text, in brackets."""
    texts = []
    for name, attribute in node.attributes.items():
        value = attribute.value
        text = f'"{value}"' if isinstance(value, str) else str(value if isinstance(value, int) else [*value])
        texts += [] if name in dropped else [f"{name} = {text}"]
    return f"<{', '.join(texts)}>" if texts else ""


def channels_last_conv(node: ir.Node, opset: int) -> str | None:
    """NhwcConv and NhwcFusedConv."""
    given = [name for name, value in zip("xwbz", node.inputs, strict=False) if value is not None]
    weights = "v = Transpose <perm = [0, 3, 1, 2]> (w)" if node.op_type == "NhwcConv" else "v = Identity(w)"
    kind = node.attributes["activation"].value if "activation" in node.attributes else "Identity"
    numbers = node.attributes["activation_params"].value if "activation_params" in node.attributes else ()
    more = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("least", "most")}.get(kind, ())
    if kind not in (*_ACTIVATIONS, "Identity") or len(numbers) != len(more):
        return None
    if kind == "Clip":
        low, high = (
            f"{name} = Constant <value_float = {number}> ()" for name, number in zip(more, numbers, strict=True)
        )
        last = f"{low} {high} y = Clip(s, least, most)"
    else:
        named = ", ".join(f"{name} = {number}" for name, number in zip(more, numbers, strict=True))
        last = f"y = {kind} {f'<{named}>' if named else ''} (s)"
    operands = "f, v, b" if "b" in given else "f, v"
    added = "s = Add(c, z)" if "z" in given else "s = Identity(c)"
    return f"""<domain: "any", opset_import: ["": {opset}]> any ({", ".join("xwbz"[: len(node.inputs)])}) => (y) {{
        f = Transpose <perm = [0, 3, 1, 2]> (x) {weights}
        t = Conv {_attributes_of(node, "activation", "activation_params")} ({operands})
        c = Transpose <perm = [0, 2, 3, 1]> (t) {added} {last} }}"""
