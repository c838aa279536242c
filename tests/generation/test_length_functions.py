"""Forms of masks and rows, found by evaluating what computes them: what is no function of positions is refused."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from ortfuse.analysis.facts import Facts
from ortfuse.generation.cache_operands import Keys
from ortfuse.generation.decoder_interface import DecoderInterface
from ortfuse.generation.find_interface import find_interface
from ortfuse.generation.length_functions import MaskForm, RowForm, find_mask_forms, find_row_forms
from ortfuse.generation.positional_values import PositionalValues
from ortfuse.io.convert_model_objects import enter

HEAD = """
<ir_version: 10, opset_import: ["" : 23]>
g (int64[batch, sequence] input_ids, int64[batch, total] attention_mask, int64[batch, sequence] position_ids,
   float[batch, 2, past, 8] past_key, float[batch, 2, past, 8] past_value)
=> (float[batch, sequence, 16] logits, float[batch, 2, total, 8] key, float[batch, 2, total, 8] value)
<float[50, 16] table = {NUMBERS}>
{
  x = Gather(table, input_ids)
  zero = Constant<value_int = 0>()
  one = Constant<value_int = 1>()
  two = Constant<value_ints = [2]>()
  first = Constant<value_ints = [1]>()
  low = Constant<value_float = -3.4e38>()
  none = Constant<value_float = 0.0>()
  p = Shape<start = 2, end = 3>(past_key)
  s = Shape<start = 1, end = 2>(input_ids)
  t = Add(p, s)
  p0 = Squeeze(p)
  t0 = Squeeze(t)
  i0 = Range(p0, t0, one)
  i = Unsqueeze(i0, first)
  j = Range(zero, t0, one)
  d = Sub(i, j)
  causal = GreaterOrEqual(d, zero)
  df = Cast<to = 1>(d)
  lengths = Cast<to = 1>(t)
"""
TAIL = """
  y, key, value = Attention<q_num_heads = 2, kv_num_heads = 2>(x, x, x, mask, past_key, past_value)
  logits = Identity(y)
}
"""


def read(body: str) -> tuple[ir.Model, DecoderInterface, PositionalValues]:
    text = (HEAD + body + TAIL).replace("NUMBERS", ", ".join(["0.5"] * 800))
    model = enter(parser.parse_model(text))[0]
    facts = Facts(model)
    interface = find_interface(model, facts)
    return model, interface, PositionalValues(model, facts, interface)


def mask_form(body: str, most: int = 40) -> MaskForm | str:
    model, _, values = read(body)
    mask = next(node for node in model.graph if node.op_type == "Attention").inputs[3]
    assert mask is not None
    forms, complete = find_mask_forms(values, {mask: Keys()}, most)
    assert complete
    return forms[mask]


def test_roles_are_found() -> None:
    _, interface, _ = read("  mask = Identity(causal)")
    assert interface.tokens.name == "input_ids"
    assert interface.positions is not None and interface.positions.name == "position_ids"
    assert interface.mask is not None and interface.mask.name == "attention_mask"
    assert [cache.past.name for cache in interface.caches] == ["past_key", "past_value"]
    assert interface.logits.name == "logits"


@pytest.mark.parametrize(
    ("body", "window"),
    [
        ("  mask = Identity(causal)", -1),
        ("  mask = Where(causal, none, low)", -1),
        ("  w = Constant<value_int = 7>()\n  near = Less(d, w)\n  mask = And(causal, near)", 7),
        ("  w = Constant<value_int = 99>()\n  near = Less(d, w)\n  mask = And(causal, near)", -1),
        (
            "  m = Cast<to = 9>(attention_mask)\n  m1 = Unsqueeze(m, first)\n  m2 = And(m1, causal)\n  mask = Unsqueeze(m2, first)",
            -1,
        ),
    ],
)
def test_causal_masks(body: str, window: int) -> None:
    form = mask_form(body)
    assert isinstance(form, MaskForm), form
    assert (form.window, form.bias) == (window, None)


@pytest.mark.parametrize(
    "bias",
    [
        "  b = Mul(df, slope)",
        "  jf = Cast<to = 1>(j)\n  b = Mul(jf, slope)",
        "  b0 = Abs(df)\n  b1 = Sqrt(b0)\n  b = Mul(b1, slope)",
    ],
)
def test_biases_are_functions_of_distance(bias: str) -> None:
    body = f"  slope = Constant<value_float = -0.25>()\n{bias}\n  mask = Where(causal, b, low)"
    form = mask_form(body)
    assert isinstance(form, MaskForm), form
    assert form.bias is not None
    assert form.bias.shape == (1, 40)
    assert form.bias[0, 0] == 0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("  mask = GreaterOrEqual(d, d)", "other keys are visible"),
        ("  mask = Greater(d, zero)", "no window that ends at the query"),
        (
            "  three = Constant<value_int = 3>()\n  r = Mod(j, three)\n  e = Equal(r, zero)\n  mask = Or(e, causal)",
            "other keys",
        ),
        ("  b = Mul(df, df)\n  c = Div(b, lengths)\n  mask = Where(causal, c, low)", "something else than a function"),
        ("  jf = Cast<to = 1>(j)\n  c = Mul(jf, jf)\n  mask = Where(causal, c, low)", "something else than a function"),
    ],
)
def test_other_masks_are_refused(body: str, why: str) -> None:
    form = mask_form(body)
    assert isinstance(form, str)
    assert why in form


def row_form(body: str, name: str, most: int = 40) -> RowForm | str:
    model, _, values = read(f"  mask = Identity(causal)\n{body}")
    value = next(value for node in model.graph for value in node.outputs if value.name == name)
    return find_row_forms(values, [value], most)[0][value]


def test_rows_are_tables_by_position() -> None:
    form = row_form("  f = Cast<to = 1>(position_ids)\n  r0 = Unsqueeze(f, two)\n  r = Cos(r0)", "r")
    assert isinstance(form, RowForm)
    assert form.axis == 1
    assert form.table.shape == (40, 1)
    counted = row_form("  z = Constant<value_ints = [0]>()\n  r = Unsqueeze(i0, z)", "r")
    assert isinstance(counted, RowForm)
    assert counted.counts


def test_rows_that_know_the_total_are_refused() -> None:
    form = row_form("  f = Cast<to = 1>(position_ids)\n  r = Div(f, lengths)", "r")
    assert isinstance(form, str)
    assert "are not those of their positions" in form
