"""Bisection of the runtime's own optimisers."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import onnx_ir as ir
from crashing import CRASHES
from small_graphs import model

from ortfuse.errors import VerificationError
from ortfuse.io.load_and_save import load
from ortfuse.verification import Session
from ortfuse.verification.bisection.bisect_runtime_optimizers import bisect_runtime

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
GELU = "a = Div(x, r) e = Erf(a) p = Add(e, one) m = Mul(x, p) y = Mul(m, half)"
NUMBERS = "<float r = {1.4142135}, float one = {1}, float half = {0.5}>"


def test_nothing_is_to_blame_when_nothing_moves() -> None:
    found = bisect_runtime(model(GELU, initializers=NUMBERS))
    assert not found.moved
    assert any("Gelu" in name for name in found.candidates)


def test_a_fusion_that_moves_an_output_is_found_with_its_site_and_called_rounding() -> None:
    found = bisect_runtime(load(GOLDEN / "bert.eager.ts.onnx"), tolerance=3e-7)
    assert found.moved
    assert len(found.optimisers) == 1
    assert "GeluFusion" in found.optimisers[0]
    assert found.site is not None
    assert found.site.operator.startswith("Gelu")
    assert found.site.nature == "rounding"
    assert found.site.difference.original_error is not None
    assert "error against float64" in "\n".join(found.lines())
    json.dumps(found.to_dict())


def test_a_rule_within_a_set_of_rules_is_named() -> None:
    found = bisect_runtime(load(GOLDEN / "resnet.tsbn.onnx"), tolerance=3e-7)
    # On some processors convolutions in blocks are that far off by rounding, too.
    assert "ConvBNFusion" in found.optimisers
    assert {*found.optimisers} <= {"ConvBNFusion", "NchwcTransformer"}


def test_a_wrong_optimiser_is_found() -> None:
    right, wrong = model(GELU, initializers=NUMBERS), model("y = Relu(x)")

    def session(disabled: Collection[str]) -> Session:
        return Session(right if "GeluFusionL2" in disabled else wrong, disabled=disabled)

    found = bisect_runtime(right, session=session)
    assert found.optimisers == ("GeluFusionL2",)


def test_an_optimiser_that_makes_a_model_that_does_not_load_is_found() -> None:
    right = model(GELU, initializers=NUMBERS)

    def session(disabled: Collection[str]) -> Session:
        if "GeluFusionL2" not in disabled:
            raise VerificationError("ONNX Runtime refuses the model: no kernel")
        return Session(right if "BiasGeluFusion" in disabled else model("y = Relu(x)"), disabled=disabled)

    found = bisect_runtime(right, session=session)
    assert found.optimisers == ("GeluFusionL2",)
    assert "does not run" in found.lines()[0]


def test_what_moves_with_every_optimiser_disabled_is_said_to_have_no_name() -> None:
    found = bisect_runtime(model(GELU, initializers=NUMBERS), session=lambda disabled: Session(model("y = Relu(x)")))
    assert found.moved
    assert found.optimisers == ()
    assert "none that has a name" in "\n".join(found.lines())


def test_the_optimisers_with_which_the_runtime_really_crashes_are_found() -> None:
    found = bisect_runtime(ir.from_onnx_text(CRASHES))
    assert found.moved
    assert "ONNX Runtime crashes when it creates a session" in found.lines()[0]
    assert "MatmulTransposeFusion" in found.optimisers
