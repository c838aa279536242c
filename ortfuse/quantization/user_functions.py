"""Load functions of the user by name: `module:function` or `file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortfuse.errors import OptionError


def is_function(name: str) -> bool:
    """Whether a text names a function: one of a module, or one in a file."""
    place, colon, function = name.rpartition(":")
    return bool(place and colon and function.isidentifier())


def function_of(name: str, option: str) -> Callable[..., Any]:
    """The function of this name.

    Args:
        name: `module:function` or `path/to/file.py:function`.
        option: The option that it is for.

    Raises:
        OptionError: It cannot be imported, or is no function.
    """
    place, _, attribute = name.rpartition(":")
    try:
        module = _of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        function = getattr(module, attribute)
    except Exception as error:  # whatever the file does
        raise OptionError(option, f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise OptionError(option, f"{name} is a {type(function).__name__}, not a function")
    found: Callable[..., Any] = function
    return found


def _of_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
