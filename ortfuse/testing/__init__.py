"""Assertions about models for pytest, and tests that hold a user's own models to stored expectations.

    from ortfuse.testing import assert_equal, assert_fused, golden

    test_models = golden("models.toml")        # a test a model; `pytest --ortfuse-refresh` stores the expectations

    def test_every_layer_is_fused():
        assert_fused("bert.onnx", attention=12, gelu=12)

Importing this package imports neither the runtime nor anything else that takes time: that is for the first use.
"""

from ortfuse.testing.assertions import assert_equal, assert_fused
from ortfuse.testing.golden_tests import golden

__all__ = ["assert_equal", "assert_fused", "golden"]
