from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from graphs import operators
from small_models import apply

from ortfuse.errors import PipelineError
from ortfuse.ir.edit import Edit
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Pattern, ms, op, var
from ortfuse.targets import CostTable, Estimate
from ortfuse.targets.rule_speedups import Measured
from ortfuse.transforms import Choices, RulePass, check_forced
from ortfuse.transforms.choose_legal_form import Choice

x = var("x")
TYPICAL = ({"x": "1 128 768"},)


def _rule(name: str, pattern: Pattern, *replace: Pattern, typical: Any = TYPICAL) -> Rule:
    return Rule(
        name=name, pattern=pattern, replace=replace, exactness=Exactness.ROUNDING, source="test",
        test=RuleTest(shapes={"x": "2"}, typical=typical),
    )  # fmt: skip


SWISH = _rule("swish.plain", x * op.Sigmoid(x), ms.QuickGelu(x, alpha=1.0), op.Swish(x))
TWICE = _rule("neg.twice", op.Neg(op.Neg(x)), op.Identity(x), op.Abs(op.Neg(x)))
BACK = _rule("swish.back", ms.QuickGelu(x), op.Mul(x, op.Sigmoid(x)))
TEXT = "agraph (float[1, {0}, 768] x) => (float[1, {0}, 768] y) {{ s = Sigmoid(x) \n y = Mul(x, s) }}"
NEG = "agraph (float[2] x) => (float[2] y) { a = Neg(x) \n y = Neg(a) }"


class Meter:
    """Knows how fast operators are."""

    def __init__(self, **speeds: float | None) -> None:
        self.speeds, self.asked = speeds, 0

    def measure(self, site: Edit) -> Estimate | None:
        self.asked += 1
        speed = self.speeds[site.added[-1].op_type]
        return None if speed is None else Estimate(speed, "these sizes", "a test")


def _run(text: str, *rules: Rule, choices: Choices, always: str = "") -> tuple[list[str], Choices]:
    model, _, context = apply(text)
    context.choices = choices
    RulePass("test", rules, always=always).run(context)
    return operators(model), choices


def _table(**speeds: float) -> Choices:
    rows = tuple(Measured.parse(f"x {size[1:]}", speed) for size, speed in speeds.items())
    return Choices(CostTable({"swish.plain": rows}, "a test"))


@pytest.mark.parametrize(("length", "fused"), [(16, False), (128, True)])
def test_a_rule_is_left_out_only_at_sizes_where_it_is_slower(length: int, fused: bool) -> None:
    found, choices = _run(TEXT.format(length), SWISH, choices=_table(_1x16x768=0.5, _1x128x768=2.0))
    assert found == (["QuickGelu"] if fused else ["Sigmoid", "Mul"])
    (choice,) = choices.list()
    assert (choice.rule, choice.applied, list(choice.sites)) == ("swish.plain", fused, ["y"])
    assert choice.to_dict()["speedup"] == (2.0 if fused else 0.5)


@pytest.mark.parametrize(("compared", "fused"), [((1, 16, 768), False), ((1, 128, 768), True)])
def test_a_rule_says_what_sizes_its_costs_depend_on(compared: tuple[int, ...], fused: bool) -> None:
    rule = dataclasses.replace(SWISH, compared_by=lambda match: {"x": compared})
    found, _ = _run(TEXT.format(16), rule, choices=_table(_1x16x768=0.5, _1x128x768=2.0))
    assert found == (["QuickGelu"] if fused else ["Sigmoid", "Mul"])


def test_rules_can_be_applied_whatever_they_cost() -> None:
    found, choices = _run(TEXT.format(16), SWISH, choices=_table(_1x16x768=0.5), always="swish.plain")
    assert (found, choices.list()) == (["QuickGelu"], [])


@pytest.mark.parametrize("name", ["swish", "swish.plain"])
@pytest.mark.parametrize("pin", ["QuickGelu", "com.microsoft.QuickGelu"])
def test_a_forced_operator_is_taken_whatever_it_costs(name: str, pin: str) -> None:
    choices = Choices(_table(_1x16x768=0.5).costs, {name: pin})
    found, choices = _run(TEXT.format(16), SWISH, BACK, choices=choices)
    assert found == ["QuickGelu"], "and what would take it away again is not applied"
    assert [(choice.rule, choice.applied, choice.estimate) for choice in choices.list()] == [
        ("swish.plain", True, None)
    ]


def test_a_forced_choice_picks_among_the_replacements() -> None:
    assert _run(NEG, TWICE, choices=Choices())[0] == ["Identity"]
    assert _run(NEG, TWICE, choices=Choices(forced={"neg": "Abs"}))[0] == ["Neg", "Abs"]


def test_a_family_can_be_left_alone() -> None:
    assert _run(TEXT.format(128), SWISH, choices=Choices(forced={"swish": "none"}))[0] == ["Sigmoid", "Mul"]


def test_the_fastest_of_several_replacements_is_taken() -> None:
    found, choices = _run(NEG, TWICE, choices=Choices(meter=Meter(Identity=1.1, Abs=1.5)))
    assert found == ["Neg", "Abs"]
    assert [(choice.produces, choice.applied) for choice in choices.list()] == [("Neg, Abs", True)]


def test_nothing_is_taken_that_is_slower_where_it_stands() -> None:
    found, choices = _run(NEG, TWICE, choices=Choices(meter=Meter(Identity=0.5, Abs=0.7)))
    assert found == ["Neg", "Neg"]
    assert {choice.produces: choice.applied for choice in choices.list()} == {"Neg, Abs": False, "Identity": False}


def test_where_nothing_can_be_measured_the_table_decides() -> None:
    choices = Choices(_table(_1x16x768=0.5).costs, meter=Meter(QuickGelu=None, Swish=None))
    assert _run(TEXT.format(16), SWISH, choices=choices)[0] == ["Sigmoid", "Mul"]


def test_rules_that_are_not_about_speed_are_not_measured() -> None:
    meter = Meter()
    found, _ = _run(NEG, _rule("neg.twice", op.Neg(op.Neg(x)), op.Abs(x), typical=()), choices=Choices(meter=meter))
    assert (found, meter.asked) == (["Abs"], 0)


def test_what_is_applied_wherever_it_is_legal_is_said_not_to_be_measured() -> None:
    fused = _rule("swish.always", x * op.Sigmoid(x), ms.QuickGelu(x, alpha=1.0), typical=())
    choices = Choices(meter=Meter())
    assert _run(TEXT.format(16), fused, choices=choices)[1].remarks() == [
        "nothing was measured: no rule that is chosen by cost has a site here",
        "not measured, as these rules are applied wherever they are legal: swish.always (1)",
    ]
    moved = _rule("neg.moved", op.Neg(op.Neg(x)), op.Reshape(x, op.Shape(x)), typical=())
    assert len(_run(NEG, moved, choices=Choices(meter=Meter()))[1].remarks()) == 1, "no fusion"
    assert _run(TEXT.format(16), fused, choices=Choices())[1].remarks() == []


def test_what_could_not_be_measured_is_said_with_what_decided_instead() -> None:
    choices = Choices(_table(_1x16x768=2.0).costs, meter=Meter(QuickGelu=None, Swish=None))
    assert _run(TEXT.format(16), SWISH, choices=choices)[1].remarks() == [
        "swish.plain could not be measured at y: the table decided"
    ]
    choices = Choices(meter=Meter(Identity=None, Abs=None))
    assert _run(NEG, TWICE, choices=choices)[1].remarks() == [
        "neg.twice could not be measured at y: it was applied, as the table does not have it"
    ]
    assert _run(NEG, TWICE, choices=Choices(meter=Meter(Identity=2.0, Abs=1.0)))[1].remarks() == []


@pytest.mark.parametrize(
    ("here", "chosen"),
    [
        ("mips wide", ["QuickGelu"]),
        ("arm wide", ["Sigmoid", "Mul"]),  # slower at some size, and sizes of another architecture tell nothing
    ],
)
def test_a_table_of_another_processor_is_said_to_be_one_where_it_decided(here: str, chosen: list[str]) -> None:
    rows = (Measured.parse("x 1x16x768", 0.5), Measured.parse("x 1x128x768", 2.0))
    elsewhere = CostTable({"swish.plain": rows}, "a test", "mips narrow").used_on(here)
    found, choices = _run(TEXT.format(128), SWISH, choices=Choices(elsewhere))
    assert found == chosen
    remark = choices.remarks()[0]
    assert f"another kind of processor (mips narrow) than this one ({here})" in remark
    assert ("left out" in remark) == (here == "arm wide")
    assert _run(NEG, TWICE, choices=Choices(elsewhere))[1].remarks() == []


def test_a_model_without_anything_to_measure_is_said_to_be_one() -> None:
    assert "nothing was measured" in _run(NEG, SWISH, choices=Choices(meter=Meter()))[1].remarks()[0]
    assert _run(NEG, SWISH, choices=Choices())[1].remarks() == []


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (
            {"swish": "Gelu"},
            "no rule of swish makes Gelu; they make com.microsoft.QuickGelu, Swish, Mul, Sigmoid, and none",
        ),
        ({"gelu": "Gelu"}, "there is no rule or family gelu; families are swish"),
    ],
)
def test_forced_choices_that_nothing_can_follow_are_refused(pins: dict[str, str], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        check_forced(pins, [SWISH, BACK])


@pytest.mark.parametrize(
    ("speedup", "taken", "decision"),
    [(1.2, True, "taken"), (0.98, True, "taken: as fast, within the noise"), (0.9, False, "left as it was")],
)
def test_a_loss_within_the_noise_is_called_that(speedup: float, taken: bool, decision: str) -> None:
    assert Choice("conv.fuse_relu", "FusedConv", Estimate(speedup, "x 1x3x8x8", "a table"), taken).decision == decision


def test_a_forced_choice_has_no_measurement() -> None:
    assert Choice("conv.fuse_relu", "FusedConv", None, True).decision == "taken"
