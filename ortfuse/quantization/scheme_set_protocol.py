"""Protocols of sites and scheme sets that the search works on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.runtime.inputs.random_inputs import Inputs

Choice = Mapping[str, str]
"""The scheme of each site that is lowered: names of schemes by names of sites."""


class SiteLike(Protocol):
    """A site at which schemes are legal, named after its output in the float32 model."""

    @property
    def operator(self) -> str:
        """The operator that computes it in float32."""

    @property
    def activations(self) -> Sequence[str]:
        """The names of the values that it takes from the rest of the model."""

    @property
    def schemes(self) -> Collection[str]:
        """The names of the schemes that are legal here."""

    @property
    def refused(self) -> Mapping[str, Refusal]:
        """The reasons why the others are not legal, by name."""

    @property
    def module(self) -> str:
        """The path of the module that it belongs to; empty if that is not known."""


class SchemeSet(Protocol):
    """The schemes that there are."""

    def sites(self, model: ir.Model) -> Mapping[str, SiteLike]:
        """The sites of a model by name."""

    def left(self, model: ir.Model) -> Mapping[str, str]:
        """Why other weights of a model have no site, by the name of what is computed with them."""

    def calibrate(self, model: ir.Model, names: Collection[str], inputs: Sequence[Inputs]) -> Any:
        """The ranges of values by name, over sets of inputs."""

    def observes(self, scheme: str) -> bool:
        """Whether a scheme has ranges, or sizes, of values that were observed when the model was run."""

    def is_fitted(self, scheme: str) -> bool:
        """Whether a scheme is better on inputs that values were observed on, although it has no ranges."""

    def lowered(self, model: ir.Model, choice: Choice, calibration: Any) -> ir.Model:
        """A copy of a model with schemes applied."""
