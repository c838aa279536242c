"""Class `SessionConfig`: the settings of a session under the runtime's own names, each with the reason for it.

A name without a dot is an attribute of `onnxruntime.SessionOptions` (`enable_mem_reuse`), one with a dot is a configuration
entry (`session.set_denormal_as_zero`); `providers` and `disabled_optimizers` are arguments of `InferenceSession`.
"""

from __future__ import annotations

import difflib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ortfuse.errors import OptionError, OrtfuseWarning
from ortfuse.errors.escape_control_characters import brief, visible
from ortfuse.io.bounded_text_files import from_json
from ortfuse.runtime.session_settings.allow_list import refusal
from ortfuse.serialization import Record
from ortfuse.targets.processor import MOST_THREADS

SCHEMA = 1
"""The version of the form in which settings are written."""

MOST_SETTINGS = 100
"""The most settings that a file may have."""

LONGEST_REASON, LONGEST_RUNTIME = 2000, 80
"""Characters of a reason and of the version of a runtime that are taken from a file."""

Value = bool | int | str | tuple[Any, ...]
"""The value of a setting: providers are names, or pairs of a name and its options."""


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("write true or false")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("write a whole number, 0 or more; 0 leaves the number to the runtime")
    return value


def _threads(value: Any) -> int:
    if _count(value) > MOST_THREADS:
        raise ValueError(f"write a whole number, {MOST_THREADS} at most")
    return int(value)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise ValueError("write a list of names")
    return tuple(value)


def _providers(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ValueError('write a list, such as ["NameExecutionProvider"]')
    return tuple(_provider(one) for one in value)


def _provider(one: Any) -> str | tuple[str, dict[str, str]]:
    if isinstance(one, str):
        return one
    if isinstance(one, Sequence) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], Mapping):
        return one[0], {str(key): _of_provider(str(key), str(value)) for key, value in one[1].items()}
    raise ValueError('write names, or pairs of a name and its options: ["NameExecutionProvider"]')


def _of_provider(name: str, value: str) -> str:
    """An option of a provider, as text."""
    if name.endswith("num_threads") and value.isdecimal() and int(value[:20]) > MOST_THREADS:
        raise ValueError(f"write {MOST_THREADS} at most for {name}")
    return value


def _choice(*choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"write {' or '.join(map(repr, choices))}")
        return str(value)

    return check


CHECKS: Mapping[str, Callable[[Any], Value]] = {
    "intra_op_num_threads": _threads,
    "inter_op_num_threads": _threads,
    "execution_mode": _choice("sequential", "parallel"),
    "graph_optimization_level": _choice("all", "layout", "extended", "basic", "none"),
    "enable_mem_reuse": _flag,
    "enable_mem_pattern": _flag,
    "enable_cpu_mem_arena": _flag,
    "disabled_optimizers": _names,
    "providers": _providers,
}
"""The settings that are not configuration entries, and what they can be."""


@dataclass(frozen=True)
class Setting(Record):
    """One setting.

    Attributes:
        name: The runtime's name.
        value: Its value; that of a configuration entry is text.
        reason: Why it is recommended.
    """

    name: str
    value: Value
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _checked(self.name, self.value))
        object.__setattr__(
            self, "reason", visible(self.reason)
        )  # it has names of a model in it, and is written to a file

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"


@dataclass(frozen=True)
class SessionConfig:
    """The settings of a session that are not the runtime's defaults.

    Attributes:
        settings: One setting a name.
        runtime: The version of the runtime that they were chosen for; empty if for any.
    """

    settings: tuple[Setting, ...] = ()
    runtime: str = ""

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.settings)

    def __len__(self) -> int:
        return len(self.settings)

    def __contains__(self, name: object) -> bool:
        return any(setting.name == name for setting in self.settings)

    def value(self, name: str) -> Value | None:
        """The value of a setting; `None` if it is left to the runtime."""
        return next((setting.value for setting in self.settings if setting.name == name), None)

    def with_(self, changes: Mapping[str, Any], reason: str = "") -> SessionConfig:
        """A copy with some settings changed; those that become `None` are left to the runtime.

        Raises:
            OptionError: There is no such setting, or it cannot have the value.
        """
        kept = tuple(setting for setting in self.settings if setting.name not in changes)
        new = tuple(Setting(name, value, reason) for name, value in changes.items() if value is not None)
        return replace(self, settings=kept + new)

    def values(self) -> dict[str, Any]:
        """The values by name, as `ortfuse.runtime.session_subprocess.configure` takes them."""
        return {setting.name: setting.value for setting in self.settings}

    def to_json(self) -> str:
        """The settings as text that `from_json` reads."""
        settings = [setting.to_dict() for setting in self.settings]
        return json.dumps(
            {"schema": SCHEMA, "runtime": self.runtime, "settings": settings}, indent=1, ensure_ascii=False
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> SessionConfig:
        """Settings from text, which comes from a file: those that no file may hold are left out, with a warning.

        Args:
            text: What `to_json` wrote, or somebody else.
            where: Where it is from, for error messages.

        Raises:
            OptionError: The text holds no settings.
        """
        try:
            content = from_json(text)
        except ValueError as error:
            raise OptionError("session", f"{where} is not JSON: {error}") from None
        settings = content.get("settings") if isinstance(content, Mapping) else None
        if not isinstance(settings, list) or not all(
            isinstance(one, Mapping) and isinstance(one.get("name"), str) and "value" in one for one in settings
        ):
            raise OptionError("session", f'{where} has no list of "settings" with a "name" and a "value" each')
        if content.get("schema") != SCHEMA:
            raise OptionError(
                "session", f"{where} is of version {brief(content.get('schema'))}, and this reads {SCHEMA}"
            )
        if len(settings) > MOST_SETTINGS:
            raise OptionError("session", f"{where} has {len(settings):,} settings, and may have {MOST_SETTINGS}")
        found: dict[str, Setting] = {}
        for one in settings:
            setting = from_file(one["name"], one["value"], one.get("reason", ""), where)
            if setting is not None and found.setdefault(setting.name, setting) is not setting:
                raise OptionError(setting.name, f"is given twice in {where}")
        return cls(tuple(found.values()), str(content.get("runtime", ""))[:LONGEST_RUNTIME])


def settings_of(config: SessionConfig) -> tuple[Setting, ...]:
    """Return the settings."""
    return config.settings


def from_file(name: str, value: Any, reason: Any, where: str) -> Setting | None:
    """Return a setting that a file holds, or `None` with a warning where the allow-list lacks it."""
    try:
        setting = Setting(name, value, str(reason)[:LONGEST_REASON])
        problem = refusal(name, setting.value)
    except OptionError as error:
        problem = error.text
    if not problem:
        return setting
    advice = "a program of your own can give it to `ortfuse.session`"
    warnings.warn(f"{where}: the setting {brief(name)} is left out: {problem}; {advice}", OrtfuseWarning, stacklevel=2)
    return None


def _checked(name: str, value: Any) -> Value:
    if "." in name:
        if not isinstance(value, str):
            raise OptionError(name, f"is a configuration entry, whose value is text: write {brief(str(value))}")
        return value
    if name not in CHECKS:
        close = difflib.get_close_matches(name, CHECKS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(CHECKS)} and entries such as session.x"
        raise OptionError(name, f"is no setting of a session; {hint}")
    try:
        return CHECKS[name](value)
    except ValueError as error:
        raise OptionError(name, f"{error}, not {brief(value)}") from None
