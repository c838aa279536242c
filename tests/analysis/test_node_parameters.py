"""Parameters of nodes, given as inputs."""

from __future__ import annotations

from onnx import parser

import ortfuse

SYMBOLIC = """
<ir_version: 10, opset_import: ["" : 17]>
g (int64[b, n] x, float[b, n] xf) => (int64[b, n] y, float[b, n] yf)
{
  s = Shape<start = 1, end = 2>(x)
  s0 = Squeeze(s)
  one = Constant<value_int = 1>()
  zero = Constant<value_int = 0>()
  high = Sub(s0, one)
  y = Clip(x, zero, high)
  hf = Cast<to = 1>(high)
  zf = Cast<to = 1>(zero)
  yf = Clip(xf, zf, hf)
}
"""


def test_rules_see_no_number_in_a_symbolic_bound() -> None:
    result = ortfuse.optimize(parser.parse_model(SYMBOLIC), verify="whole")
    assert not result.report.failures
    assert result.verdict is not None and result.verdict.ok
