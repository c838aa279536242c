"""Apply the same schemes everywhere without search or measurement, for models that need not fit into memory.

Weights are read and lowered tensor by tensor while the result is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.errors import NoSiteError, OptionError, PrecisionError
from ortfuse.ir.selection import EVERYTHING, Selected
from ortfuse.naming import name_today
from ortfuse.quantization.calibration import calibrate
from ortfuse.quantization.cross_layer_equalization import equalised
from ortfuse.quantization.quantization_sites import lowered, names_to_observe, survey
from ortfuse.quantization.scheme_families import family_of, is_like, names_of
from ortfuse.quantization.scheme_rules import AnyRange
from ortfuse.quantization.unquantized_weights import why_none
from ortfuse.rewrite import Rule
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import weight_bytes
from ortfuse.serialization import Record, derived, entry
from ortfuse.targets import Target


@dataclass(frozen=True)
class Uniform(Record):
    """A model with the same schemes everywhere.

    Attributes:
        model: The model.
        choice: The scheme of each site that was lowered.
        without_ranges: The sites that would have been lowered too if the ranges of their values had been observed.
        modules: The path of the module of each site that was lowered, as far as it is known.
        unquantized: Why other weights stay in float32, by the name of what is computed with them.
        float_size: The bytes of weights before.
        size: The bytes of weights after.
    """

    model: ir.Model = field(repr=False, metadata=entry(omit=True))
    choice: Mapping[str, str]
    without_ranges: Sequence[str]
    float_size: int
    size: int
    unquantized: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)

    @property
    @derived()
    def ok(self) -> bool:
        """Whether something was found, which is so."""
        return True


def named(rules: Mapping[str, Rule], names: Sequence[str]) -> dict[str, Rule]:
    """The schemes of these names, or of families of these names, in this order, with those for other forms of their operators.

    Raises:
        OptionError: There is none of a name.
    """
    found: dict[str, Rule] = {}
    known = {*rules, *map(family_of, rules)}
    for name in (name_today(one, ("rules", "families"), known) for one in names):
        fit = {scheme: rule for scheme, rule in rules.items() if family_of(scheme) == name or is_like(scheme, name)}
        if not fit:
            raise OptionError(
                "schemes",
                f"no scheme is called {name!r}; there are {_families(rules)}, or one of these as {next(iter(rules), '')}",
            )
        found |= {scheme: rule for scheme, rule in fit.items() if scheme not in found}
    return found


def uniform(
    model: ir.Model,
    schemes: Mapping[str, Rule],
    inputs: Sequence[Inputs] | None = None,
    target: Target | None = None,
    selected: Selected = EVERYTHING,
) -> Uniform:
    """Apply, at every site, the first of the schemes that is legal there.

    Args:
        model: The model in float32, best as `ortfuse.optimize` makes it; not changed.
        schemes: The schemes, the best first.
        inputs: What the model is run on to observe ranges, if there is any.
        target: What executes the result.
        selected: What may be in lower precision.

    Raises:
        NoSiteError: No scheme is legal anywhere; the message says why.
        PrecisionError: All schemes that are need inputs.
    """
    seen = survey(model, target, AnyRange(), schemes, selected)
    places = seen.sites
    named = names_of(list(dict.fromkeys(map(family_of, schemes))))
    if not places:
        raise NoSiteError(f"{named} is legal nowhere in the model: {why_none(seen.left)}")
    if inputs:
        model, _ = equalised(model, inputs)
    calibration = calibrate(model, names_to_observe(places.values()), inputs) if inputs else None
    found = survey(model, target, calibration, schemes, selected).sites
    choice = {name: next(scheme for scheme in schemes if scheme in site.schemes) for name, site in found.items()}
    if not choice:
        raise PrecisionError(
            f"ranges of values are needed for {named}: give inputs to observe them on, or take a scheme without "
            "fixed ranges"
        )
    made = lowered(model, choice, calibration, target, schemes, selected)
    modules = {name: found[name].module for name in choice if found[name].module}
    waiting = tuple(name for name in places if name not in choice)
    return Uniform(made, choice, waiting, weight_bytes(model), weight_bytes(made), seen.left, modules)


def _families(schemes: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(family_of(scheme) for scheme in schemes))
