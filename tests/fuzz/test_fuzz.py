"""A sample of the long run (python -m tests.fuzz), the same at every run."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortfuse.errors import VerificationError

from .judge import judge
from .known import known_cause
from .models import Sample, samples
from .mutations import mutated_bytes, mutated_structure
from .worker import try_file

_SAMPLED = settings(
    max_examples=100, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)


@_SAMPLED
@given(samples(nearly=False))
def test_a_random_model_computes_the_same_afterwards(sample: Sample) -> None:
    try:
        failure, _ = judge(sample.model, sample.feeds)
    except VerificationError:
        return
    assert failure is None or known_cause(failure), f"{failure.signature}\n{failure.detail}"


@pytest.mark.parametrize("mutate", [mutated_bytes, mutated_structure])
@_SAMPLED
@given(samples(), st.integers(0, 1000))
def test_a_damaged_file_ends_in_a_result_or_an_error_of_ortfuse(
    tmp_path_factory: pytest.TempPathFactory, mutate: object, sample: Sample, number: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    assert isinstance(path, Path)
    path.write_bytes(mutate(sample.model.SerializeToString(), random.Random(number)))  # type: ignore[operator]
    failure = try_file(path, Counter())
    assert failure is None, f"{failure.signature}\n{failure.detail}"
