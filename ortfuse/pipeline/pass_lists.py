"""Load pass lists: named pipelines in TOML files, with the conditions for choosing them:

    description = "What it is for."
    reason = "Why these passes, in this order."                          # optional
    passes = ["canonicalize", "fuse.normalization", "fuse.*", "user"]    # items of a pipeline, in order

    [when]                              # optional: the list suits a model with
    all = ["MatMul", "token ids"]       # all of these operators and signs,
    any = ["Softmax", "Tanh"]           # at least one of these,
    none = ["LSTM"]                     # and none of these

The lists in `lists/` come with ortfuse: the levels, and one for each family of models. `auto` selects the list that
suits the model, of several the one that demands most of it (of those that demand as much, a user's, then the first by
name), or `all` if none does. Operators outside of ai.onnx are written with their domain; signs are those of
`content.SIGNS`. Files of the user's extend the lists, and replace those of the same name; none may be called like a
pass.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ortfuse.errors import PipelineError
from ortfuse.io.bounded_text_files import from_toml, read_text
from ortfuse.pipeline.model_features import SIGNS, Content
from ortfuse.pipeline.pipeline_text import Pipeline, parse

FALLBACK = "all"
"""The list that `auto` selects if no other suits the model."""


@dataclass(frozen=True)
class When:
    """The operators and signs that a model must or must not have for a list to suit it."""

    all: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    none: tuple[str, ...] = ()

    def holds(self, content: Collection[str] | Content) -> bool:
        """Whether a model with this content fulfils the condition."""
        return (
            all(name in content for name in self.all)
            and (not self.any or any(name in content for name in self.any))
            and not any(name in content for name in self.none)
        )

    @property
    def demands(self) -> int:
        """How much it demands of a model: the more, the more specific the list."""
        return len(self.all) + bool(self.any)

    def evidence(self, content: Content) -> str:
        """The part of the model that fulfils the condition."""
        found = [*self.all, *(name for name in self.any if name in content)]
        absent = f"; no {', '.join(self.none)}" if self.none else ""
        return ", ".join(map(content.evidence, found)) + absent

    def __str__(self) -> str:
        conditions = (
            ("with ", " and ", self.all),
            ("with one of ", ", ", self.any),
            ("without ", ", ", self.none),
        )
        return ", ".join(before + between.join(names) for before, between, names in conditions if names)


@dataclass(frozen=True)
class PassList:
    """A named pipeline, its purpose, the reason for its passes, and the models it suits (`None`: it is used only by name)."""

    name: str
    description: str
    pipeline: Pipeline
    when: When | None
    reason: str = ""


Lists = Mapping[str, PassList]


@functools.cache
def built_in_lists() -> Lists:
    """The lists that come with ortfuse, by name."""
    folder = resources.files("ortfuse.pipeline") / "lists"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): _read(file, file.name) for file in files}


def lists_with(paths: Iterable[Path]) -> Lists:
    """The lists that come with ortfuse, extended and replaced by files of the user's, or by all those of a folder.

    Raises:
        PipelineError: A path does not exist, or a file is not a pass list.
    """
    found: dict[str, PassList] = {}
    for path in paths:
        files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not files:
            raise PipelineError(f"{path}: the folder has no pass lists (*.toml)")
        for file in files:
            known = read_list(file)
            found[known.name] = known
    return {**found, **{name: known for name, known in built_in_lists().items() if name not in found}}


def read_list(path: Path) -> PassList:
    """Read a list of the user's own.

    Raises:
        PipelineError: The file cannot be read, or is not a pass list.
    """
    return _read(path, str(path))


def suitable_list(content: Collection[str] | Content, lists: Lists | None = None) -> PassList:
    """The list for a model with this content, from all or those given."""
    known = built_in_lists() if lists is None else lists
    fitting = [found for found in known.values() if found.when is not None and found.when.holds(content)]
    return max(fitting, key=lambda found: found.when.demands if found.when else 0, default=known[FALLBACK])


def _read(file: Traversable, name: str) -> PassList:
    try:
        text = read_text(file) if isinstance(file, Path) else file.read_text(encoding="utf-8")
        data = from_toml(text)
    except OSError as error:
        raise PipelineError(f"{name}: the pass list cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PipelineError(f"{name}: the pass list is not UTF-8 text") from error
    except ValueError as error:
        raise PipelineError(f"{name}: the pass list is not TOML: {error}") from error
    unknown = sorted(data.keys() - {"description", "reason", "passes", "when"})
    if unknown:
        raise PipelineError(f"{name}: a pass list has no {unknown[0]!r}; it has description, reason, passes and when")
    texts = {key: data.get(key, "") for key in ("description", "reason")}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise PipelineError(f"{name}: the {key} must be a text")
    passes = _texts(data.get("passes"), "passes", name)
    try:
        pipeline = parse(", ".join(passes))
    except PipelineError as error:
        raise PipelineError(f"{name}: {error}") from error
    return PassList(
        Path(name).stem,
        texts["description"],
        pipeline,
        _when(data.get("when"), name),
        " ".join(texts["reason"].split()),
    )


def _when(data: Any, name: str) -> When | None:
    if data is None:
        return None
    if not isinstance(data, dict) or data.keys() - {"all", "any", "none"}:
        raise PipelineError(f"{name}: [when] has lists of operators under `all`, `any` and `none`, and nothing else")
    found = When(**{key: tuple(_texts(value, f"when.{key}", name)) for key, value in data.items()})
    for word in (*found.all, *found.any, *found.none):
        # Operators are written without blanks and with a capital; everything else is to be a sign.
        if word not in SIGNS and (" " in word or word.rpartition(".")[2][:1].islower()):
            raise PipelineError(
                f"{name}: {word!r} is neither an operator nor a sign; signs are {', '.join(sorted(SIGNS))}"
            )
    return found


def _texts(value: Any, key: str, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PipelineError(f'{name}: {key} must be a list of texts, such as ["fold", "dce"]')
    return value
