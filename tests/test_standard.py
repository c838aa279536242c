"""A sample of the standard's own tests: what the runtime executes comes out the same after `optimize`."""

from __future__ import annotations

import functools

import pytest

from benchmarks.trust.standard import LIGHT, NOT_EXECUTED, Case, cases, verdict

PARTS = 16
"""Making the tests takes seconds, which only those processes spend that run them: so the tests are not known by name before."""


@functools.cache
def every() -> list[Case]:
    return cases()


@functools.cache
def sample() -> list[Case]:
    return [
        *[case for case in every() if case.kind == "node" and len(case.model().graph.node) > 1][::3],
        *[case for case in every() if case.kind not in ("node", LIGHT)][::7],
        *[case for case in every() if case.name in ("light_squeezenet_random", "light_shufflenet_random")],
    ]


def test_every_kind_of_test_is_found() -> None:
    assert {case.kind for case in every()} == {"node", "simple", "pytorch-operator", "pytorch-converted", LIGHT}
    assert {case.kind for case in sample()} == {case.kind for case in every()}


@pytest.mark.parametrize("part", range(PARTS))
def test_what_the_runtime_executes_comes_out_the_same(part: int) -> None:
    answers = {f"{case.kind}: {case.name}": verdict(case) for case in sample()[part::PARTS]}
    assert "same" in answers.values()
    assert {name: answer for name, answer in answers.items() if answer not in ("same", NOT_EXECUTED)} == {}
