"""Search space of the tuner: model variants and session settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ortfuse.runtime.session_settings.recommendations import DENORMALS
from ortfuse.targets import TargetSpec, default_spec
from ortfuse.targets.processor import granted_processors
from ortfuse.tuning.outcome import Value

Choice = Mapping[str, Value]
"""A value for each dimension."""

MODEL = "model"
"""The dimension of the variants of the model."""

ORIGINAL = "original"
QUANTIZED = "quantized"

THREADS = "intra_op_num_threads"
PROVIDER = "provider"
DISABLED = "disabled"

_OPTION = "option."
"""The start of the names of options of the target's provider."""

_FORCED = "pin."  # as studies of the past have it


@dataclass(frozen=True)
class Space:
    """The dimensions of the search, each with its values; the first value is what is there without a search.

    Attributes:
        dimensions: The values by name, in the order in which they are tried: those that may be worth most first.
        recommended: The settings that are recommended without a search, as far as they are no default.
        providers: The providers of a session for the target, the first of which has the options that are searched.
    """

    dimensions: Mapping[str, tuple[Value, ...]]
    recommended: Choice = field(default_factory=dict)
    providers: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        variants: Sequence[str],
        *,
        forced: Mapping[str, Sequence[str]],
        providers: Sequence[str],
        threads: int,
        processors: int,
        denormals: bool,
        settings: Mapping[str, Any],
        operators: Collection[str] = (),
        target: TargetSpec | None = None,
    ) -> Space:
        """The space for a model.

        Args:
            variants: The names of the variants of the model, the usual one first.
            forced: The operators that the sites of each family may become, where there are several.
            providers: The providers that the runtime has.
            threads: The number of threads if it is given; 0 to search it.
            processors: How many processors there are.
            denormals: Whether zeros may stand for numbers below the smallest normal one.
            settings: The settings that are recommended without a search.
            operators: The operators of the model.
            target: The target that says which settings are searched, and with which provider; by default the default one.
        """
        spec = target or default_spec()
        dimensions: dict[str, tuple[Value, ...]] = {MODEL: tuple(variants)}
        dimensions |= {_FORCED + family: ("", *operators) for family, operators in forced.items()}
        most = granted_processors() or processors
        counts = sorted({1, max(1, most // 2), most} - {0})
        if not threads and len(counts) > 1:
            dimensions[THREADS] = (0, *counts)
        first = spec.session_providers()[0]
        others = tuple(one for one in providers if one not in (first, "AzureExecutionProvider"))
        if others:
            dimensions[PROVIDER] = (first, *others)
        if denormals:
            dimensions[DENORMALS] = ("0", "1")
        dimensions |= spec.tuned_settings
        for name, option in spec.tuned_options.items():
            if not option.operators or option.operators & set(operators):
                dimensions[_OPTION + name] = option.values
        known = {name: value for name, value in settings.items() if value in dimensions.get(name, ())[1:]}
        return cls(dimensions, known, spec.session_providers())

    @property
    def usual(self) -> dict[str, Value]:
        """The choice without a search."""
        return {name: values[0] for name, values in self.dimensions.items()}

    def holds(self, choice: Choice) -> bool:
        """Whether a choice is one of the space: that of a file may be anything."""
        return choice.keys() == self.dimensions.keys() and all(
            any(type(value) is type(one) and value == one for one in self.dimensions[name])
            for name, value in choice.items()
        )

    def settings(self, choice: Choice) -> dict[str, Any]:
        """The settings of a session, without those that are the runtime's default."""
        usual = self.usual
        found: dict[str, Any] = {
            name: value
            for name, value in choice.items()
            if name not in (MODEL, PROVIDER, DISABLED)
            and not name.startswith((_FORCED, _OPTION))
            and value != usual[name]
        }
        options = {
            name.removeprefix(_OPTION): str(value)
            for name, value in choice.items()
            if name.startswith(_OPTION) and value != usual[name]
        }
        first, *_ = self.dimensions.get(PROVIDER, ("",))
        if choice.get(PROVIDER, first) != first:
            found["providers"] = [choice[PROVIDER], first]
        elif options:
            found["providers"] = [(self.providers[0], options), *self.providers[1:]]
        if choice.get(DISABLED):
            found["disabled_optimizers"] = [choice[DISABLED]]
        return found

    def forced(self, choice: Choice) -> dict[str, str]:
        """The forced choices of a choice."""
        return {
            name.removeprefix(_FORCED): str(value)
            for name, value in choice.items()
            if name.startswith(_FORCED) and value
        }

    def is_of_model(self, name: str) -> bool:
        """Whether a dimension says which model it is, and not how its session is opened."""
        return name == MODEL or name.startswith(_FORCED)

    def model(self, choice: Choice) -> dict[str, Value]:
        """The part of a choice that says which model it is."""
        return {name: value for name, value in choice.items() if self.is_of_model(name)}

    def matters(self, name: str, choice: Choice) -> bool:
        """Whether a dimension makes a difference to a choice."""
        if name.startswith(_OPTION):
            return PROVIDER not in choice or choice[PROVIDER] == self.usual[PROVIDER]
        return not name.startswith(_FORCED) or choice[MODEL] not in (ORIGINAL, QUANTIZED)
