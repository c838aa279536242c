"""Optimise a model for each of several targets, and write a file for each."""

from __future__ import annotations

import os
from typing import Unpack

from ortfuse.api.assess_optimization import Progress
from ortfuse.api.effective_options import effective_options
from ortfuse.api.optimize import optimize, options_by_target
from ortfuse.api.result import Result
from ortfuse.errors import OptionError
from ortfuse.io.convert_model_objects import AnyModel
from ortfuse.options import AllOptions, Options
from ortfuse.options.target_in_file_name import TARGET, has_target


def optimize_for_targets(
    model: AnyModel,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    **changes: Unpack[AllOptions],
) -> dict[str, Result]:
    """Optimise a model for each of several targets and releases by itself; `optimize` makes one result for all.

    Args:
        model: As for `optimize`.
        options: How to optimise. `target` and `runtime` list targets and releases with commas between them; `{target}` in the
            name of `output` stands for each.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Returns:
        The results by target: its short name, and the release after a hyphen, such as `cpu-1.20`.

    Raises:
        WrongResultError: A result does not compute what the model computes. Those before it are written.
        OptionError: The name of the output has no `{target}`, or an option has an invalid value.
        OrtfuseError: As for `optimize`.
    """
    options = effective_options(options, **changes)
    if options.output is not None and not has_target(options.output):
        raise OptionError(
            "output", f"{os.fspath(options.output)}: has no {TARGET} in its name, which each target replaces"
        )
    return {label: optimize(model, one, progress=progress) for label, one in options_by_target(options).items()}
