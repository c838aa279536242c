"""Steps one after the other that keep the states of rows that have ended are operators with lengths."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import run
from recurrent_models import HIDDEN, INPUTS, constants, gru_sized, model, step

import ortfuse

PASSES = "canonicalize, fuse_recurrent{always=true}, canonicalize"
LSTM, STEPS = "lstm of two Gemms", 4
X, STATE = f"float[{STEPS}, b, {INPUTS}] X", f"float[b, {HIDDEN}]"
WHERE = "{s}k{t} = Where(ok{t}, {s}{t}, {before})"
NUMBER = "gt{t} = Greater(L, at{n}) ok{t} = Unsqueeze(gt{t}, no1)"
TABLE = "rc = Unsqueeze(row, no0) lc = Unsqueeze(L, no1) M = Less(rc, lc)"
HELD, CUT, BLANK = (
    "y{t} = Identity(hk{t})",
    "y{t} = Where(ok{t}, h{t}, zero)",
    "w_{t} = Cast<to = 1>(ok{t}) y{t} = Mul(w_{t}, h{t})",
)


def weights(spelling: str) -> dict[str, Any]:
    found = gru_sized(constants()) if spelling.startswith("gru") else constants()
    return found | {"zero": np.float32(0), "float1": np.float32(1), "row": list(range(STEPS))}


def chain(
    spelling: str = LSTM,
    mask: str = NUMBER,
    kept: str = WHERE,
    result: str = HELD,
    head: str = "",
    falling: bool = False,
    first: str = "0",
    inputs: str = "int64[b] L",
    more: str = "",
) -> onnx.ModelProto:
    """Cells one after the other, whose states are kept; the results of all steps are stacked."""
    names = ["h", "c"] if spelling.startswith("lstm") else ["h"]
    before = {name: f"{name}{first}" for name in names}
    found = [head]
    for t in range(1, STEPS + 1):
        n = STEPS - t if falling else t - 1
        found += [f"x{t} = Gather(X, at{n})", mask.format(t=t, n=n)]
        found.append(step(spelling, f"x{t}", before["h"], before.get("c", ""), t))
        found += [kept.format(s=name, t=t, before=before[name]) for name in names]
        found.append(result.format(t=t))
        before = {name: f"{name}k{t}" for name in names}
    parts = [f"st{t}" for t in range(1, STEPS + 1)]
    found += [f"st{t} = Unsqueeze(y{t}, no0)" for t in range(1, STEPS + 1)]
    found.append(f"Y = Concat<axis = 0>({', '.join(parts[::-1] if falling else parts)}) {more}")
    given = "" if first != "0" else ", ".join(["", *(f"{STATE} {name}0" for name in names)])
    outputs = ", ".join([f"float[{STEPS}, b, {HIDDEN}] Y", *(f"{STATE} {name}k{STEPS}" for name in names)])
    return model(" ".join(found), f"{X}, {inputs}{given}", outputs, weights(spelling))


def optimised(made: onnx.ModelProto, lengths: tuple[int, ...] = (0, 1, 3, 4, 9)) -> Counter[str]:
    """The operators of the result, which gives the same for rows of any length."""
    result = ortfuse.optimize(made, passes=PASSES).model
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for value in made.graph.input:
        kind, rank = value.type.tensor_type.elem_type, len(value.type.tensor_type.shape.dim)
        if value.name == "L" and rank == 1:
            feeds["L"] = np.array(lengths, np.int32 if kind == 6 else np.int64)
        elif value.name == "L":
            feeds["L"] = rng.integers(0, 2, (len(lengths), STEPS)).astype(bool)
        else:
            sizes = [one.dim_value or len(lengths) for one in value.type.tensor_type.shape.dim]
            feeds[value.name] = rng.standard_normal(sizes).astype(np.float32)
    for old, new in zip(run(made, feeds), run(result, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-6)
    for node in result.graph.node:
        assert node.op_type not in ("LSTM", "GRU", "RNN") or node.input[4]
    return Counter(node.op_type for node in result.graph.node)


@pytest.mark.parametrize("spelling", [LSTM, "gru", "gru that resets first", "rnn"])
@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("result", [HELD, CUT, BLANK])
def test_steps_that_keep_states_are_one_operator(spelling: str, falling: bool, result: str) -> None:
    found = optimised(chain(spelling, falling=falling, result=result))
    kind = spelling.split()[0].upper()
    assert (found[kind], found["Tanh"], found["Concat"]) == (1, 0, 0)


@pytest.mark.parametrize("first", ["zeros", "0"])
def test_initial_states(first: str) -> None:
    """Of rows that are empty, the operator gives 0."""
    head = "sx = Shape(X) b1 = Slice(sx, no1, no2) size = Concat<axis = 0>(b1, no2) hzeros = ConstantOfShape(size) czeros = Identity(hzeros)"
    found = optimised(chain(head=head if first == "zeros" else "", first=first))
    assert found["LSTM"] == 1
    assert found["Where"] == (1 if first == "zeros" else 3)


@pytest.mark.parametrize(
    ("mask", "head"),
    [
        ("gt{t} = Less(at{n}, L) ok{t} = Unsqueeze(gt{t}, no1)", ""),
        ("ngt{t} = LessOrEqual(L, at{n}) gt{t} = Not(ngt{t}) ok{t} = Unsqueeze(gt{t}, no1)", ""),
        ("ok{t} = Slice(M, no{n}, e{n}, no1)", TABLE),
        ("gt{t} = Gather<axis = 1>(M, at{n}) ok{t} = Unsqueeze(gt{t}, no1)", TABLE),
        ("ok{t} = Gather(M3, at{n})", TABLE + " MT = Transpose<perm = [1, 0]>(M) M3 = Unsqueeze(MT, no2)"),
    ],
)
def test_the_mask_may_be_spelled_in_any_way(mask: str, head: str) -> None:
    ends = " ".join(f"e{n} = Add(no{n}, no1)" for n in range(STEPS))
    assert optimised(chain(mask=mask, head=f"{ends} {head}"))["LSTM"] == 1


@pytest.mark.parametrize(
    "kept",
    [
        "sw{s}{t} = Cast<to = 1>(ok{t}) sv{s}{t} = Sub(float1, sw{s}{t}) sa{s}{t} = Mul(sw{s}{t}, {s}{t}) se{s}{t} = Mul({before}, sv{s}{t}) {s}k{t} = Add(sa{s}{t}, se{s}{t})",
        "sw{s}{t} = Cast<to = 1>(ok{t}) sv{s}{t} = Sub({s}{t}, {before}) sa{s}{t} = Mul(sw{s}{t}, sv{s}{t}) {s}k{t} = Add(sa{s}{t}, {before})",
        "not_{s}{t} = Not(ok{t}) {s}k{t} = Where(not_{s}{t}, {before}, {s}{t})",
    ],
)  # fmt: skip
@pytest.mark.parametrize("result", [HELD, BLANK])
def test_the_choice_may_be_spelled_in_any_way(kept: str, result: str) -> None:
    found = optimised(chain(kept=kept, result=result))
    assert (found["LSTM"], found["Tanh"]) == (1, 0)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (chain(mask="gt{t} = Gather<axis = 1>(L, at{n}) ok{t} = Unsqueeze(gt{t}, no1)", inputs="bool[b, 4] L"), "a mask may have holes"),
        (chain(mask=NUMBER.replace("at{n}", "at0")), "the number does not change"),
        (chain(result="y{t} = Tanh(h{t})"), "what is computed behind the end is used"),
        (chain(result="nm{t} = Not(ok{t}) y{t} = Where(nm{t}, h{t}, zero)"), "what is computed behind the end is used"),
        (chain(kept="{s}k{t} = Where(ok{t}, {before}, {s}{t})"), "states are kept before the end"),
        (chain(result="y{t} = Add(ck{t}, hk{t})"), "cell states between the steps are used"),
        (chain(mask="later{t} = Add(L, no{n}) gt{t} = Greater(later{t}, at{n}) ok{t} = Unsqueeze(gt{t}, no1)"), "lengths for each step"),
    ],
)  # fmt: skip
def test_what_stays_a_chain(made: onnx.ModelProto, why: str) -> None:
    assert optimised(made)["LSTM"] == 0, why
