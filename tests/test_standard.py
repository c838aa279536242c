"""A sample of the standard's own tests: what the runtime executes comes out the same after `optimize`."""

from __future__ import annotations

import pytest

from benchmarks.trust.standard import LIGHT, NOT_EXECUTED, Case, cases, verdict

ALL = cases()
SAMPLE = [
    *[case for case in ALL if case.kind == "node" and len(case.model().graph.node) > 1][::3],
    *[case for case in ALL if case.kind not in ("node", LIGHT)][::7],
    *[case for case in ALL if case.name in ("light_squeezenet_random", "light_shufflenet_random")],
]


def test_every_kind_of_test_is_found() -> None:
    assert {case.kind for case in ALL} == {"node", "simple", "pytorch-operator", "pytorch-converted", LIGHT}
    assert {case.kind for case in SAMPLE} == {case.kind for case in ALL}


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_what_the_runtime_executes_comes_out_the_same(case: Case) -> None:
    answer = verdict(case)
    if answer == NOT_EXECUTED:
        pytest.skip(NOT_EXECUTED)
    assert answer == "same"
