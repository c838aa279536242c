"""Checks of option values from Python or a file: each returns the canonical form of a value, or raises `OptionError`."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

from ortfuse.analysis.assumptions import ASSUMPTIONS
from ortfuse.errors import OptionError
from ortfuse.errors.escape_control_characters import brief
from ortfuse.options.parse_text import LONGEST
from ortfuse.options.type_aliases import Verification
from ortfuse.targets.processor import demand_threads
from ortfuse.targets.target_spec import TargetSpec

LARGEST_NUMBER = 2**31 - 1
"""The largest whole number that an option can be."""

LARGEST_FLOAT = sys.float_info.max
"""The largest number that is none of an infinite size: whole numbers have no bound in Python and TOML."""

Check: TypeAlias = Callable[[str, Any], Any]
"""Takes the name of an option and its value; returns the value in its canonical form."""


def whole_number(least: int, most: int = LARGEST_NUMBER) -> Check:
    """Make the check of a whole number from `least` to `most`."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
            raise OptionError(name, f"write a whole number, {least} or more, not {brief(value)}")
        if value.__index__() > most:
            raise OptionError(name, f"write a whole number, {most:,} at most, not {brief(value)}")
        return int(value.__index__())

    return check


def or_none(check: Check) -> Check:
    """Extend a check to allow `None`."""
    return lambda name, value: None if value is None else check(name, value)


def boolean(name: str, value: Any) -> bool:
    """Check a truth value."""
    if not isinstance(value, bool):
        raise OptionError(name, f"write true or false, not {brief(value)}")
    return value


def error_bound(name: str, value: Any) -> float:
    """Check a number that is finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_FLOAT:
        raise OptionError(name, f"write a number that is 0 or more, such as 1e-3, not {brief(value)}")
    return float(value)


def share(name: str, value: Any) -> float:
    """Check a share: a number above 0, and at most 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise OptionError(name, f"write a share above 0 and at most 1, such as 0.3, not {brief(value)}")
    return float(value)


def seconds(name: str, value: Any) -> float:
    """Check a positive number of seconds; infinity is allowed."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise OptionError(name, f"write a number of seconds above 0, such as 60, not {brief(value)}")
    return float(value) if value <= LARGEST_FLOAT else math.inf


def duration(name: str, value: Any) -> float:
    """Check a finite number of seconds that may be 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_FLOAT:
        raise OptionError(name, f"write a number of seconds that is 0 or more, such as 60, not {brief(value)}")
    return float(value)


def one_of(choices: tuple[str, ...]) -> Check:
    """Make the check of a text that is one of several, or `None`."""

    def check(name: str, value: Any) -> str | None:
        if value is not None and value not in choices:
            raise OptionError(name, f"write {' or '.join(map(repr, choices))}, not {brief(value)}")
        return value if value is None else str(value)

    return check


def path(name: str, value: Any) -> Any:
    """Check a path."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise OptionError(name, f"write a path, not {brief(value)}")
    return value


def paths(name: str, value: Any) -> tuple[Any, ...]:
    """Check one or several paths."""
    if isinstance(value, str | os.PathLike):
        return (path(name, value),)
    if isinstance(value, Mapping) or not hasattr(value, "__iter__"):
        raise OptionError(name, f"write the paths of files or folders, not {brief(value)}")
    return tuple(path(name, one) for one in value)


def patterns(name: str, value: Any) -> tuple[Any, ...]:
    """Check paths and rules."""
    from ortfuse.rewrite import Rule

    found = (value,) if isinstance(value, Rule) else value
    if isinstance(found, str | os.PathLike | Mapping) or not hasattr(found, "__iter__"):
        return paths(name, found)
    return tuple(one if isinstance(one, Rule) else path(name, one) for one in found)


def passes(name: str, value: Any) -> Any:
    """Check a pipeline."""
    if isinstance(value, str | os.PathLike):
        return value
    if isinstance(value, Mapping) or not hasattr(value, "__iter__"):
        raise OptionError(
            name, f'write a pipeline, such as "canonicalize, fuse.*", or a list of passes, not {brief(value)}'
        )
    return tuple(value)


def assumptions(name: str, value: Any) -> tuple[str, ...]:
    """Check names of assumptions."""
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not all(isinstance(one, str) for one in found):
        raise OptionError(
            name, f"write the names of assumptions, such as {next(iter(ASSUMPTIONS))}, not {brief(value)}"
        )
    for one in found:
        if one not in ASSUMPTIONS:
            raise OptionError(name, f"there is no assumption {one!r}; there are {', '.join(ASSUMPTIONS)}")
    return tuple(dict.fromkeys(found))


def explain(name: str, value: Any) -> Any:
    """Check a truth value, or names of families and rules."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise OptionError(
            name, f'write true, or a list of families and rules such as ["attention"], not {brief(value)}'
        )
    return tuple(value) or True


def inputs(name: str, value: Any) -> Any:
    """Check a path, or sets of inputs; a data reader is read to its end."""
    if value is None or isinstance(value, str | os.PathLike):
        return value if value is None else path(name, value)
    if hasattr(value, "get_next"):
        from ortfuse.runtime.inputs.from_calibration_data_reader import from_reader

        value = from_reader(value)
    if isinstance(value, Mapping) or not isinstance(value, Sequence) or not value:
        raise OptionError(name, "write a path, or a list of sets of inputs: [{'x': array, ...}, ...]")
    for one in value:
        for key, content in one.items() if isinstance(one, Mapping) else [("", one)]:
            # A sequence or a map of tensors is a list or a dictionary of arrays.
            parts = content if isinstance(content, list) else [content]
            if not key or not all(hasattr(part, "dtype") or isinstance(part, Mapping) for part in parts):
                kind = type(content).__name__
                raise OptionError(
                    name, f"write arrays by name, such as {{'x': numpy.asarray(...)}}; {key!r} is a {kind}"
                )
    return value


def operators(name: str, value: Any) -> dict[str, str]:
    """Check operators by family or rule."""
    if not isinstance(value, Mapping) or not all(
        isinstance(one, str) and one for part in value.items() for one in part
    ):
        raise OptionError(name, f'write operators by family, such as {{attention = "Attention"}}, not {brief(value)}')
    return dict(value)


def sizes(name: str, value: Any) -> dict[str, int]:
    """Check sizes by dimension."""
    if not isinstance(value, Mapping):
        raise OptionError(name, f"write numbers by dimension, such as {{sequence = 128}}, not {brief(value)}")
    least = whole_number(0)
    return {str(dim): least(f"{name}[{dim}]", size) for dim, size in value.items()}


def fixed(name: str, value: Any) -> dict[str, int | tuple[int, ...]]:
    """Check sizes by dimension, and shapes by input: `128`, `"1x128"` or `(1, 128)`."""
    if not isinstance(value, Mapping):
        raise OptionError(
            name, f"write numbers by dimension or shapes by input, such as {{sequence = 128}}, not {brief(value)}"
        )
    return {str(one): _size_or_shape(f"{name}[{one}]", size) for one, size in value.items()}


def _size_or_shape(name: str, value: Any) -> int | tuple[int, ...]:
    least: Callable[[str, Any], int] = whole_number(0)
    parts = value.split("x") if isinstance(value, str) else value
    if not isinstance(parts, Sequence):
        return least(name, parts)
    numbers = [int(one) if isinstance(one, str) and one.isdecimal() and len(one) <= LONGEST else one for one in parts]
    if not numbers or any(isinstance(one, str) for one in numbers):
        raise OptionError(name, f"write a size or the shape of an input, such as 128 or 1x128, not {brief(value)}")
    shape = tuple(least(name, one) for one in numbers)
    return shape[0] if isinstance(value, str) and len(shape) == 1 else shape


def names(name: str, value: Any) -> tuple[str, ...]:
    """Check one or several names."""
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not all(isinstance(one, str) and one.strip() for one in found):
        raise OptionError(name, f'write names, such as ["logits"], not {brief(value)}')
    return tuple(found)


def verification(name: str, value: Any) -> str | None:
    """Check a kind of verification: `True` becomes `"whole"`, and `False` becomes `None`."""
    if isinstance(value, bool):
        return "whole" if value else None
    if value is not None and value not in get_args(Verification):
        raise OptionError(name, f"write true, {' or '.join(map(repr, get_args(Verification)))}, not {value!r}")
    return value if value is None else str(value)


def equal_dims(name: str, value: Any) -> dict[str, str]:
    """Check names or formulas by dimension."""
    if not isinstance(value, Mapping) or not all(
        isinstance(one, str) and one.strip() for pair in value.items() for one in pair
    ):
        raise OptionError(name, f'write names by dimension, such as {{s54 = "s84"}}, not {value!r}')
    return {one.strip(): other.strip() for one, other in value.items()}


def size_ranges(name: str, value: Any) -> dict[str, tuple[int, int]]:
    """Check ranges of sizes by dimension."""
    if not isinstance(value, Mapping):
        raise OptionError(name, f'write bounds by dimension, such as {{sequence = "1:512"}}, not {value!r}')
    return {str(dim): _range(f"{name}[{dim}]", one) for dim, one in value.items()}


def _range(name: str, value: Any) -> tuple[int, int]:
    ends = value.split(":") if isinstance(value, str) else value
    if not isinstance(ends, Sequence) or len(ends) != 2:
        raise OptionError(name, f"write the least and the largest size, such as 1:512, not {value!r}")
    numbers = [
        int(end) if isinstance(end, str) and end.strip().isdecimal() and len(end) <= LONGEST else end for end in ends
    ]
    low, high = (whole_number(0)(name, number) for number in numbers)
    if low > high:
        raise OptionError(name, f"{low} is more than {high}; write the least size first")
    return low, high


def target(name: str, value: Any) -> Any:
    """Check a target, or the name or path of one."""
    if value is None or hasattr(value, "check_node") or isinstance(value, TargetSpec):
        return value
    return path(name, value)


def release(name: str, value: Any) -> str:
    """Check the numbers of releases of ONNX Runtime, such as 1.20 or 1.20,1.24."""
    if isinstance(value, str) and re.fullmatch(r"\d+\.\d+(\.\d+)?(\s*,\s*\d+\.\d+(\.\d+)?)*", value.strip()):
        return value.strip()
    raise OptionError(name, f"name a release of ONNX Runtime by its number, such as 1.20, not {value!r}")


def threads(name: str, value: Any) -> int:
    """Check a number of threads, which is bounded by the processor."""
    return demand_threads(value, name)
