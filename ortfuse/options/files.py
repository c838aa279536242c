"""Read and write options as TOML, with paths relative to the file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortfuse.errors import OptionError
from ortfuse.io.bounded_text_files import from_toml, read_text
from ortfuse.options.declaration import Declaration, former_names, meant
from ortfuse.options.former_options import with_names_of_today
from ortfuse.options.type_aliases import PathLike


def options_in(path: PathLike, declared: Mapping[str, Declaration]) -> dict[str, Any]:
    """Read a TOML file of options; relative paths in it start from its folder.

    Raises:
        OptionError: The file cannot be read, or has an unknown option.
    """
    name = os.fspath(path)
    try:
        data = from_toml(read_text(path))
    except OSError as error:
        raise OptionError("config", f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise OptionError("config", f"{name} is not TOML: {error}") from error
    data = with_names_of_today(data, former_names(declared))
    known = {option: one for option, one in declared.items() if one.in_files}
    for key in data:
        if key not in known:
            close = meant(key, known)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(known)}"
            raise OptionError("config", f"{name}: there is no option {key!r}; {hint}")
    return resolved(data, Path(path).parent, declared)


def resolved(data: Mapping[str, Any], folder: Path, declared: Mapping[str, Declaration]) -> dict[str, Any]:
    """Options of a file in `folder`, with their relative paths resolved against it; other keys stay as they are."""
    found = with_names_of_today(data, former_names(declared))
    for name, value in found.items():
        kind = declared[name].kind if name in declared else None
        if kind is None or not kind.path_endings:
            continue
        several = value if isinstance(value, list) else [value] if isinstance(value, str) else []
        paths = [str(folder / one) if kind.paths_in(one) else one for one in several]
        if kind.repeated and several:
            found[name] = paths
        elif isinstance(value, str):
            found[name] = paths[0]
    return found


def as_data(value: Any) -> Any:
    """An option as data for JSON."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): as_data(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [as_data(one) for one in value]
    return str(value)


def as_toml(name: str, value: Any) -> str:
    """An option as a TOML value.

    Raises:
        OptionError: It is an object or holds arrays.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | os.PathLike):
        return json.dumps(os.fspath(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{as_toml(name, str(key))} = {as_toml(name, one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(as_toml(name, one) for one in value) + "]"
    raise OptionError(name, f"{type(value).__name__} objects cannot stand in a file; write a name or a path")
