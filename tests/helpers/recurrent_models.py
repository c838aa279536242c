"""Small recurrent models as text: cells in several spellings, one after the other or in a loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

INPUTS, HIDDEN = 3, 2

Step = Callable[[str, str, str, int], str]
"""The nodes of one step, of x, h and c to `h{t}` and `c{t}`, by their names and number."""

SIGMOIDS = "i{t} = Sigmoid({i}) f{t} = Sigmoid({f}) o{t} = Sigmoid({o}) g{t} = Tanh({g})"
CELL = (
    "fc{t} = Mul(f{t}, {c}) ig{t} = Mul(i{t}, g{t}) c{t} = Add(fc{t}, ig{t}) tc{t} = Tanh(c{t}) h{t} = Mul(o{t}, tc{t})"
)
BOTH = "a{t} = Gemm<transB = 1>({x}, W, b) r{t} = Gemm<transB = 1>({h}, R, rb)"
GATES = SIGMOIDS.replace("{i}", "p{t}").replace("{f}", "q{t}").replace("{g}", "u{t}").replace("{o}", "v{t}")
RESET = "rh{t} = {reset} n{t} = Tanh(pre{t})"
THREE = "ax{t}, ay{t}, az{t} = Split<axis = 1>(a{t}, three) rx{t}, ry{t}, rz{t} = Split<axis = 1>(r{t}, three)"
GRU = f"""{BOTH} {THREE} pr{{t}} = Add(ax{{t}}, rx{{t}}) r_{{t}} = Sigmoid(pr{{t}}) pz{{t}} = Add(ay{{t}}, ry{{t}})
    z{{t}} = Sigmoid(pz{{t}}) rh{{t}} = Mul(r_{{t}}, rz{{t}}) pn{{t}} = Add(az{{t}}, rh{{t}}) n{{t}} = Tanh(pn{{t}})"""
FIRST_RESET = """a{t} = MatMul({x}, K) j{t} = Concat<axis = 1>({x}, {h}) k{t} = MatMul(j{t}, Z) s{t} = Sigmoid(k{t})
    r_{t}, z{t} = Split<axis = 1>(s{t}, two) rh{t} = Mul(r_{t}, {h}) l{t} = Concat<axis = 1>(rh{t}, {x}) m{t} = MatMul(l{t}, N)
    pn{t} = Add(m{t}, nb) n{t} = Tanh(pn{t})"""

SPELLINGS: Mapping[str, str] = {
    "lstm of two Gemms": f"{BOTH} s{{t}} = Add(a{{t}}, r{{t}}) p{{t}}, q{{t}}, u{{t}}, v{{t}} = Split<axis = 1>(s{{t}}, four) {GATES} {CELL}",
    "lstm of one Gemm in the other": f"a{{t}} = Gemm<transB = 1>({{x}}, W, b) s{{t}} = Gemm<transB = 1, alpha = 0.5>({{h}}, R, a{{t}}) "
    f"p{{t}}, q{{t}}, u{{t}}, v{{t}} = Split<axis = -1>(s{{t}}, four) {GATES} {CELL}",
    "lstm of [x, h] with a forget bias": "j{t} = Concat<axis = 1>({x}, {h}) k{t} = MatMul(j{t}, J) s{t} = Add(k{t}, b) "
    "p{t}, u{t}, q{t}, v{t} = Split<axis = 1>(s{t}, four) qb{t} = Add(q{t}, one) "
    + GATES.replace("Sigmoid(q{t})", "Sigmoid(qb{t})") + " " + CELL,
    "lstm of [h, x] by slices": "j{t} = Concat<axis = -1>({h}, {x}) s{t} = MatMul(j{t}, J) p{t} = Slice(s{t}, no0, no2, no1) "
    f"q{{t}} = Slice(s{{t}}, no2, no4, no1) u{{t}} = Slice(s{{t}}, no4, no6, no1) v{{t}} = Slice(s{{t}}, no6, no8, no1) {GATES} {CELL}",
    "lstm that squashes three gates at once": f"{BOTH} s{{t}} = Add(a{{t}}, r{{t}}) gg{{t}} = Slice(s{{t}}, no0, no6, no1) u{{t}} = Slice(s{{t}}, no6, no8, no1) "
    "sg{t} = Sigmoid(gg{t}) i{t}, f{t}, o{t} = Split<axis = 1>(sg{t}, three) g{t} = Tanh(u{t}) " + CELL,
    "lstm by slices of two axes": f"{BOTH} s{{t}} = Add(a{{t}}, r{{t}}) p{{t}} = Slice(s{{t}}, from0, to2, axes) q{{t}} = Slice(s{{t}}, from2, to4, axes) "
    f"u{{t}} = Slice(s{{t}}, from4, to6, axes) v{{t}} = Slice(s{{t}}, last2, to8, axes) {GATES} {CELL}",
    "lstm with gates as an axis": f"{BOTH} s{{t}} = Add(r{{t}}, a{{t}}) w{{t}} = Reshape(s{{t}}, by_gate) p{{t}} = Gather<axis = 1>(w{{t}}, at0) "
    "q{t} = Gather<axis = 1>(w{t}, at1) u{t} = Gather<axis = 1>(w{t}, at2) v{t} = Gather<axis = 1>(w{t}, at3) " + f"{GATES} {CELL}",
    "lstm with hard gates": f"{BOTH} s{{t}} = Sub(a{{t}}, r{{t}}) p{{t}}, q{{t}}, u{{t}}, v{{t}} = Split<axis = 1>(s{{t}}, four) "
    + GATES.replace("Sigmoid(", "HardSigmoid<alpha = 0.3>(") + " " + CELL,
    "lstm with a relu": f"{BOTH} s{{t}} = Add(a{{t}}, r{{t}}) p{{t}}, q{{t}}, u{{t}}, v{{t}} = Split<axis = 1>(s{{t}}, four) "
    + (GATES + " " + CELL).replace("Tanh", "Relu"),
    "lstm with peepholes": f"{BOTH} s{{t}} = Add(a{{t}}, r{{t}}) p{{t}}, q{{t}}, u{{t}}, v{{t}} = Split<axis = 1>(s{{t}}, four) "
    "pp{t} = Mul({c}, pi) ip{t} = Add(p{t}, pp{t}) i{t} = Sigmoid(ip{t}) qp{t} = Mul(pf, {c}) iq{t} = Sub(q{t}, qp{t}) f{t} = Sigmoid(iq{t}) "
    "g{t} = Tanh(u{t}) fc{t} = Mul(f{t}, {c}) ig{t} = Mul(i{t}, g{t}) c{t} = Add(fc{t}, ig{t}) vp{t} = Mul(po, c{t}) "
    "iv{t} = Add(vp{t}, v{t}) o{t} = Sigmoid(iv{t}) tc{t} = Tanh(c{t}) h{t} = Mul(o{t}, tc{t})",
    "lstm that forgets 1 - i": f"{BOTH} s{{t}} = Add(a{{t}}, r{{t}}) p{{t}}, q{{t}}, u{{t}}, v{{t}} = Split<axis = 1>(s{{t}}, four) "
    + (GATES + " " + CELL).replace("f{t} = Sigmoid(q{t})", "f{t} = Sub(one, i{t})"),
    "lstm that enters 1 - f": f"{BOTH} s{{t}} = Add(a{{t}}, r{{t}}) p{{t}}, q{{t}}, u{{t}}, v{{t}} = Split<axis = 1>(s{{t}}, four) {GATES} "
    "cg{t} = Sub({c}, g{t}) fc{t} = Mul(f{t}, cg{t}) c{t} = Add(fc{t}, g{t}) tc{t} = Tanh(c{t}) h{t} = Mul(o{t}, tc{t})",
    "lstm with other activations": f"{BOTH} s{{t}} = Add(a{{t}}, r{{t}}) p{{t}}, q{{t}}, u{{t}}, v{{t}} = Split<axis = 1>(s{{t}}, four) "
    + (GATES + " " + CELL).replace("g{t} = Tanh(", "g{t} = Elu<alpha = 0.5>(").replace("tc{t} = Tanh(", "tc{t} = Softsign("),
    "gru": GRU + " d{t} = Sub({h}, n{t}) zd{t} = Mul(d{t}, z{t}) h{t} = Add(zd{t}, n{t})",
    "gru with 1 - z": GRU + " w{t} = Sub(one, z{t}) wn{t} = Mul(w{t}, n{t}) zh{t} = Mul(z{t}, {h}) h{t} = Add(wn{t}, zh{t})",
    "gru that keeps 1 - z": GRU + " w{t} = Sub(one, z{t}) wh{t} = Mul({h}, w{t}) zn{t} = Mul(z{t}, n{t}) h{t} = Add(wh{t}, zn{t})",
    "gru that moves towards n": GRU + " d{t} = Sub({h}, n{t}) zd{t} = Mul(d{t}, z{t}) h{t} = Sub({h}, zd{t})",
    "gru with hard gates": GRU.replace("Sigmoid(", "HardSigmoid(") + " w{t} = Sub(one, z{t}) wh{t} = Mul({h}, w{t}) zn{t} = Mul(z{t}, n{t}) h{t} = Add(wh{t}, zn{t})",
    "gru that resets first": FIRST_RESET + " d{t} = Sub({h}, n{t}) zd{t} = Mul(d{t}, z{t}) h{t} = Add(zd{t}, n{t})",
    "gru with a leaky relu": GRU.replace("Tanh(", "LeakyRelu<alpha = 0.2>(") + " d{t} = Sub({h}, n{t}) zd{t} = Mul(d{t}, z{t}) h{t} = Add(zd{t}, n{t})",
    "rnn": BOTH.replace("W", "V").replace("R,", "U,").replace("rb", "cb").replace(" b)", " db)") + " s{t} = Add(a{t}, r{t}) h{t} = Tanh(s{t})",
    "rnn with relu": BOTH.replace("W", "V").replace("R,", "U,").replace("rb", "cb").replace(" b)", " db)") + " s{t} = Add(a{t}, r{t}) h{t} = Relu(s{t})",
    "rnn with softplus": BOTH.replace("W", "V").replace("R,", "U,").replace("rb", "cb").replace(" b)", " db)") + " s{t} = Add(a{t}, r{t}) h{t} = Softplus(s{t})",
}  # fmt: skip
"""One step of each spelling, of {x}, {h} and {c}."""


def step(spelling: str, x: str, h: str, c: str, t: int) -> str:
    """The text of one step."""
    return SPELLINGS.get(spelling, spelling).format(x=x, h=h, c=c, t=t)


def constants(seed: int = 0) -> dict[str, Any]:
    """The weights and numbers that the spellings use."""
    rng = np.random.default_rng(seed)
    gates, both = 4 * HIDDEN, INPUTS + HIDDEN

    def weights(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    found: dict[str, Any] = {
        "W": weights(gates, INPUTS), "R": weights(gates, HIDDEN), "b": weights(gates), "rb": weights(gates),
        "J": weights(both, gates), "V": weights(HIDDEN, INPUTS), "U": weights(HIDDEN, HIDDEN), "cb": weights(HIDDEN),
        "db": weights(1, HIDDEN), "K": weights(INPUTS, HIDDEN), "Z": weights(both, 2 * HIDDEN), "N": weights(both, HIDDEN),
        "nb": weights(HIDDEN), "one": np.float32(1), "three": [HIDDEN] * 3, "two": [HIDDEN] * 2, "four": [HIDDEN] * 4,
        "by_gate": [-1, 4, HIDDEN], "zeros": np.zeros((2, HIDDEN), np.float32), "pi": weights(HIDDEN), "pf": weights(1, HIDDEN), "po": weights(HIDDEN),
    }  # fmt: skip
    found |= {f"from{first}": [0, first] for first in (0, 2, 4)} | {f"to{end}": [2**62, end] for end in (2, 4, 6, 8)}
    found |= {"axes": [0, 1], "last2": [0, -2]}
    found |= {f"no{number}": [number] for number in range(10)} | {
        f"at{number}": np.int64(number) for number in range(10)
    }
    return found


def gru_sized(found: dict[str, Any]) -> dict[str, Any]:
    """The weights of three gates instead of four."""
    return found | {name: found[name][: 3 * HIDDEN] for name in ("W", "R", "b", "rb")}


def model(body: str, inputs: str, outputs: str, weights: Mapping[str, Any], opset: int = 17) -> onnx.ModelProto:
    """A model of text whose constants are those of `weights` that the text names."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    made = onnx.parser.parse_model(text)
    used = _used(made.graph)
    for name in sorted(used & weights.keys()):
        array = np.asarray(weights[name])
        array = array.astype(np.int64) if array.dtype.kind in "iu" else array
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(made)
    return made


def _used(graph: onnx.GraphProto) -> set[str]:
    """The names that the nodes of a graph and of its bodies read."""
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return {name for node in graph.node for name in node.input}.union(*map(_used, inner))


def unrolled(spelling: str, steps: int, *, h: str = "h0", c: str = "c0", first: int = 1) -> str:
    """Steps one after the other, on `x{t}`, from `h` and `c`."""
    found = []
    for t in range(first, first + steps):
        found.append(step(spelling, f"x{t}", h, c, t))
        h, c = f"h{t}", f"c{t}"
    return " ".join(found)


def elements(steps: int, axis: int = 0, *, falling: bool = False) -> str:
    """The inputs `x1` and so on as elements of X."""
    places = range(steps)[::-1] if falling else range(steps)
    return " ".join(f"x{t} = Gather<axis = {axis}>(X, at{place})" for t, place in enumerate(places, 1))


def stacked(steps: int, axis: int = 0, *, falling: bool = False) -> str:
    """The states `h1` and so on stacked to Y."""
    order = range(1, steps + 1)[::-1] if falling else range(1, steps + 1)
    names = [f"on{t}" for t in order]
    return (
        " ".join(f"on{t} = Unsqueeze(h{t}, no{axis})" for t in order)
        + f" Y = Concat<axis = {axis}>({', '.join(names)})"
    )
