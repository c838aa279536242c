"""Few small nodes are left of masks, positions and angles that exporters compute for every query, batch element and head."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from rewriting import ops, parse

import ortfuse
from ortfuse.verification import verify


def optimised(text: str) -> ir.Model:
    """A model after everything, which computes the same."""
    model = parse(text)
    result = ortfuse.optimize(model).model
    assert verify(model, result).ok
    return result


CONSTANTS = """int64 k0 = {0}, int64 k1 = {1}, int64[1] v0 = {0}, int64[1] v1 = {1}, int64[3] row = {0, 1, 3},
int64[3] column = {0, 1, 2}, int64[2] middle = {1, 2}, float zero = {0}, float low = {-3.4028234663852886e38}"""
QUERIES = "si = Shape<start = 1, end = 2>(i) s = Squeeze(si) q = Range(k0, s, k1) qr = Unsqueeze(q, row)"
PAST = "pi = Shape<start = 1, end = 2>(c) p = Squeeze(pi)"


def graph(body: str, inputs: str, result: str) -> str:
    return f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => ({result} y) <{CONSTANTS}> {{ {body} }}'


def test_a_mask_that_no_query_changes_is_expanded_once_it_is_made() -> None:
    body = f"""{QUERIES} ge = GreaterOrEqual(qr, k0) m = Cast<to = 9>(a) mk = Unsqueeze(m, middle)
        both = And(ge, mk) y = Where(both, zero, low)"""
    result = optimised(graph(body, "int64[b,s] i, int64[b,s] a", "float[b,1,s,s]"))
    assert ops(result).split()[-1] == "Expand"
    assert not {"Range", "And", "GreaterOrEqual"} & set(ops(result).split())


def test_a_mask_that_depends_on_the_query_stays() -> None:
    body = f"""{QUERIES} ge = Greater(qr, k0) m = Cast<to = 9>(a) mk = Unsqueeze(m, middle)
        both = And(ge, mk) y = Where(both, zero, low)"""
    assert "And" in ops(optimised(graph(body, "int64[b,s] i, int64[b,s] a", "float[b,1,s,s]")))


@pytest.mark.parametrize(("compare", "gone"), [("LessOrEqual", True), ("Less", False)])
def test_a_single_query_after_a_past_sees_all_keys(compare: str, gone: bool) -> None:
    body = f"""{PAST} t = Add(p, k1) k = Range(k0, t, k1) last = Unsqueeze(pi, column) kc = Unsqueeze(k, column)
        le = {compare}(kc, last) f = Cast<to = 1>(kc) other = GreaterOrEqual(f, x) y = And(le, other)"""
    result = optimised(graph(body, "float[b,p] c, float[b,1,1,1] x", "bool[b,1,1,t]"))
    left = ops(result).split()
    assert compare not in left
    # Where the last key stays hidden, it is cut off and padded: two nodes in place of Unsqueeze, Less and And.
    assert ("And" not in left and "Pad" not in left) is gone
    assert len(left) == (6 if gone else 8)


@pytest.mark.parametrize(("start", "known"), [("k0", True), ("k1", False)])
def test_embeddings_of_counted_positions_are_a_slice_of_their_table(start: str, known: bool) -> None:
    body = f"{QUERIES} r = Range({start}, s, k1) e = Gather(w, r) y = Add(x, e)"
    text = graph(body, "int64[b,s] i, float[b,s,4] x, float[30,4] w", "float[b,s,4]")
    if known:
        assert "Gather" not in ops(optimised(text)) and "Slice" in ops(optimised(text))
    else:
        assert "Gather" in ops(ortfuse.optimize(parse(text)).model)


def test_positions_after_a_past_are_counted_from_there() -> None:
    body = f"""{QUERIES} {PAST} at = Add(q, p) t = Add(p, s) k = Range(k0, t, k1) kr = Unsqueeze(k, v0)
        ar = Unsqueeze(at, v1) y = LessOrEqual(kr, ar)"""
    result = optimised(graph(body, "int64[b,s] i, float[b,p] c", "bool[s,t]"))
    assert ops(result).split().count("Add") == 1


def test_positions_that_something_else_reads_are_counted_once() -> None:
    body = f"{QUERIES} {PAST} at = Add(q, p) z = Cast<to = 1>(q) y0 = Cast<to = 1>(at) y = Mul(z, y0)"
    assert ops(optimised(graph(body, "int64[b,s] i, float[b,p] c", "float[s]"))).split().count("Range") == 1
