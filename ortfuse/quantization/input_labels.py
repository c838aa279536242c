"""Pass labels of inputs to accuracy metrics, as a further array in each input set; the model does not take them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ortfuse.errors import OptionError, VerificationError
from ortfuse.io.bounded_text_files import read_text
from ortfuse.quantization.user_functions import function_of, is_function
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.inputs.read_input_files import InputSets, notes_of
from ortfuse.runtime.inputs.read_single_array_files import LONGEST, array_of

LABELS = "labels"
"""The name that a metric finds them under, among the inputs."""

LabelsLike: TypeAlias = "str | os.PathLike[str] | Sequence[Any] | Callable[[Sequence[Inputs]], Sequence[Any]]"
"""A .npy or .csv file, a label for each set of inputs, or a function (also as `"file.py:function"`) that returns these."""


def with_labels(sets: Sequence[Inputs] | None, labels: LabelsLike | None) -> Sequence[Inputs] | None:
    """The sets of inputs with a label each; with one set, the labels are those of its batch.

    Args:
        sets: The user's sets of inputs.
        labels: The labels; `None` to leave the sets as they are.

    Raises:
        OptionError: There are no inputs, the labels cannot be read, or there are not as many as sets of inputs.
    """
    if labels is None:
        return sets
    if sets is None:
        raise OptionError("labels", "give the inputs that they belong to, too")
    if any(LABELS in one for one in sets):
        raise OptionError(
            "labels", f"the model has an input called {LABELS!r}; let the function have the labels otherwise"
        )
    found = _read(sets, labels)
    if len(sets) == 1 and len(found) != 1:
        found = [np.asarray(found)]
    if len(found) != len(sets):
        raise OptionError("labels", f"there are {len(found)} of them for {len(sets)} sets of inputs; give one for each")
    labelled = ({**one, LABELS: np.asarray(label)} for one, label in zip(sets, found, strict=True))
    return InputSets(labelled, notes_of(sets))


def _read(sets: Sequence[Inputs], labels: LabelsLike) -> Sequence[Any]:
    if callable(labels) or (isinstance(labels, str) and is_function(labels)):
        function = labels if callable(labels) else function_of(labels, "labels")
        try:
            return list(function(sets))
        except Exception as problem:
            raise OptionError("labels", f"the function fails: {type(problem).__name__}: {problem}") from problem
    if not isinstance(labels, str | os.PathLike):
        return list(labels)
    path = Path(labels)
    try:
        if path.suffix.lower() == ".npy":
            return list(np.atleast_1d(array_of(path)))
        return list(np.atleast_1d(np.loadtxt(io.StringIO(read_text(path)), delimiter=",", ndmin=1)))
    except VerificationError as error:
        raise OptionError("labels", str(error)) from error
    except OSError as error:
        raise OptionError("labels", f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # numpy raises many kinds of errors on damaged files
        raise OptionError(
            "labels", f"{path}: cannot be read as a .npy file or numbers in lines: {str(error)[:LONGEST]}"
        ) from error
