"""The search for slow kernels: the sources of spellings, and the comparison of equal ones alone."""

from __future__ import annotations

from itertools import islice

import onnx

from benchmarks.kernels.identities import identities
from benchmarks.kernels.slow_kernels import Candidate, from_bodies, from_identities, from_rules, measure


def test_known_slow_kernels_are_in_the_table() -> None:
    operators = {identity.operator for identity in identities()}
    assert {"Softplus", "Mish", "Softmax, axis 1", "Gemm of one row", "SkipLayerNormalization"} <= operators
    assert all(len(identity.spellings) > 1 for identity in identities())


def test_spellings_come_from_identities_bodies_and_rules() -> None:
    assert {len(found.spellings) for found in islice(from_identities("pow 3"), 1)} == {2}
    assert [found.operator for found in islice(from_bodies("softplus"), 1)] == ["Softplus"]
    assert [found.source for found in islice(from_rules("clip.relu_of_relu"), 1)] == ["rule"]


def test_the_slower_of_two_equal_spellings_is_named() -> None:
    found = measure(next(from_bodies("softplus")), rounds=1, threads=1)
    assert found is not None
    assert {found.slow, found.fast} <= {"Softplus", "its body"}
    assert found.ratio >= 1


def test_spellings_of_different_computations_are_not_compared() -> None:
    def model(operator: str) -> onnx.ModelProto:
        made: onnx.ModelProto = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y) {{ y = {operator}(x) }}'
        )
        return made

    assert measure(Candidate("Neg", "3", "test", {"Neg": model("Neg"), "Abs": model("Abs")}), 1, 1) is None
