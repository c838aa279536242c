"""Pass lists: named pipelines, as data. Each is a TOML file:

    description = "What it is for."
    passes = ["canonicalize", "fuse.normalization", "fuse.*", "user"]    # items of a pipeline, in order

    [when]                      # optional: the list suits a model with
    all = ["MatMul"]            # all of these operators,
    any = ["Softmax", "Tanh"]   # at least one of these,
    none = ["LSTM"]             # and none of these

The lists in `lists/` come with ortfuse: the levels, and one for each family of models. `auto` selects the list that suits
the operators of the model, or `all` if none does. Operators outside of ai.onnx are written with their domain.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ortfuse.errors import PipelineError
from ortfuse.pipeline.text import Pipeline, parse

FALLBACK = "all"
"""The list that `auto` selects if no other suits the model."""


@dataclass(frozen=True)
class When:
    """The operators that a model must or must not contain for a list to suit it."""

    all: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    none: tuple[str, ...] = ()

    def holds(self, operators: Collection[str]) -> bool:
        """Whether a model with these operators fulfils the condition."""
        return (
            all(name in operators for name in self.all)
            and (not self.any or any(name in operators for name in self.any))
            and not any(name in operators for name in self.none)
        )

    def __str__(self) -> str:
        conditions = (
            ("with ", " and ", self.all),
            ("with one of ", ", ", self.any),
            ("without ", ", ", self.none),
        )
        return ", ".join(before + between.join(names) for before, between, names in conditions if names)


@dataclass(frozen=True)
class PassList:
    """A named pipeline, its purpose, and the models it suits (`None`: it is used only when asked for by name)."""

    name: str
    description: str
    pipeline: Pipeline
    when: When | None


@functools.cache
def built_in_lists() -> dict[str, PassList]:
    """The lists that come with ortfuse, by name."""
    folder = resources.files("ortfuse.pipeline") / "lists"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): _read(file, file.name) for file in files}


def read_list(path: Path) -> PassList:
    """Read a list of the user's own.

    Raises:
        PipelineError: The file cannot be read, or is not a pass list.
    """
    return _read(path, str(path))


def suitable_list(operators: Collection[str]) -> PassList:
    """The list for a model with these operators."""
    lists = built_in_lists()
    fitting = (known for known in lists.values() if known.when is not None and known.when.holds(operators))
    return next(fitting, lists[FALLBACK])


def _read(file: Traversable, name: str) -> PassList:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(f"{name}: the pass list cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PipelineError(f"{name}: the pass list is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"{name}: the pass list is not TOML: {error}") from error
    unknown = sorted(data.keys() - {"description", "passes", "when"})
    if unknown:
        raise PipelineError(f"{name}: a pass list has no {unknown[0]!r}; it has description, passes and when")
    description = data.get("description", "")
    if not isinstance(description, str):
        raise PipelineError(f"{name}: the description must be a text")
    try:
        pipeline = parse(", ".join(_texts(data.get("passes"), "passes", name)))
    except PipelineError as error:
        raise PipelineError(f"{name}: {error}") from error
    return PassList(Path(name).stem, description, pipeline, _when(data.get("when"), name))


def _when(data: Any, name: str) -> When | None:
    if data is None:
        return None
    if not isinstance(data, dict) or data.keys() - {"all", "any", "none"}:
        raise PipelineError(f"{name}: [when] has lists of operators under `all`, `any` and `none`, and nothing else")
    return When(**{key: tuple(_texts(value, f"when.{key}", name)) for key, value in data.items()})


def _texts(value: Any, key: str, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PipelineError(f'{name}: {key} must be a list of texts, such as ["fold", "dce"]')
    return value
