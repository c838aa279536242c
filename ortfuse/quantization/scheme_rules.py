"""Load the quantisation schemes for a target: built-in rules and those of the user's files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.ir.selection import EVERYTHING, Selected
from ortfuse.quantization.calibration import Calibration, calibrate
from ortfuse.quantization.quantization_sites import Site, Survey, lowered, quantization_rules, survey
from ortfuse.quantization.scheme_set_protocol import Choice
from ortfuse.rewrite import Rule
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.targets import Target


class AnyRange(Calibration):
    """Ranges before values are observed: sites whose schemes need ranges are found too."""

    def range(self, name: str, method: str) -> tuple[float, float]:
        """Some range."""
        return -1.0, 1.0

    def means(self, name: str) -> None:
        """Nothing."""

    def moments(self, name: str) -> None:
        """Nothing."""

    def columns(self, name: str) -> tuple[float, ...]:
        """Some size."""
        return (1.0,)


class Rules:
    """Lossy rules as schemes.

    Args:
        rules: The rules by name; by default those that come with ortfuse and those of installed packages.
        target: What executes the result.
        selected: What may be in lower precision.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule] | None = None,
        target: Target | None = None,
        selected: Selected = EVERYTHING,
    ) -> None:
        self._rules = quantization_rules() if rules is None else rules
        self._target, self._selected = target, selected
        self._known: tuple[ir.Model, Survey] | None = None

    def sites(self, model: ir.Model) -> Mapping[str, Site]:
        """The sites of a model by name."""
        return self._survey(model).sites

    def left(self, model: ir.Model) -> Mapping[str, str]:
        """Why other weights of a model have no site."""
        return self._survey(model).left

    def _survey(self, model: ir.Model) -> Survey:
        if self._known is None or self._known[0] is not model:
            self._known = (model, survey(model, self._target, AnyRange(), self._rules, self._selected))
        return self._known[1]

    def calibrate(self, model: ir.Model, names: Collection[str], inputs: Sequence[Inputs]) -> Calibration:
        """The ranges of values by name, over sets of inputs."""
        return calibrate(model, names, inputs)

    def observes(self, scheme: str) -> bool:
        """Whether a scheme has ranges, or sizes, of values that were observed: its rule test needs some."""
        return bool(self._rules[scheme].test.ranges)

    def is_fitted(self, scheme: str) -> bool:
        """Whether a scheme is better on inputs that values were observed on, although it has no ranges."""
        return self._rules[scheme].is_fitted

    def lowered(self, model: ir.Model, choice: Choice, calibration: Any) -> ir.Model:
        """A copy of a model with schemes applied."""
        return lowered(model, choice, calibration, self._target, self._rules, self._selected)
