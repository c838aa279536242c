"""Allow-list of the settings that a file may hold, each with bounds on its value.

A model and the file of settings beside it come from anywhere. The runtime has settings that name a file to write, a library to
load or a service to send inputs to (`session.collect_node_memory_stats_to_file`, `ep.context_file_path`, options of
providers). None of them is on the list. A program may still give any setting itself, see `ortfuse.session`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ortfuse.targets.processor import MOST_THREADS

MOST_NAMES = 64
"""The most names in a list."""

_OPTIMISER = re.compile(r"[A-Za-z0-9_]{1,100}")
_PROVIDER = re.compile(r"[A-Za-z0-9]{1,40}ExecutionProvider")
_REMOTE = frozenset({"AzureExecutionProvider"})
"""Providers that send inputs to another machine."""

_OF_PROVIDERS = frozenset({"intra_op_num_threads", "device_id", "prefer_nhwc"})
"""The options of providers that are numbers: the others name caches, libraries and profiles."""

Bound = Callable[[Any], str]
"""Says what is wrong with a value, in words; empty if it may be taken."""


def refusal(name: str, value: Any) -> str:
    """Why a setting is not taken from a file, in words; empty if it is."""
    bound = ALLOWED.get(name)
    return "no file may hold it" if bound is None else bound(value)


def _any(value: Any) -> str:
    return ""


def _up_to(most: int) -> Bound:
    def check(value: Any) -> str:
        text = str(value)
        fits = re.fullmatch(r"[0-9]{1,9}", text) is not None and int(text) <= most
        return "" if fits else f"it is a whole number from 0 to {most}"

    return check


def _names(value: Any) -> str:
    fits = len(value) <= MOST_NAMES and all(_OPTIMISER.fullmatch(one) for one in value)
    return "" if fits else f"it is a list of up to {MOST_NAMES} names of optimisers"


def _providers(value: Any) -> str:
    if len(value) > MOST_NAMES:
        return f"it is a list of up to {MOST_NAMES} providers"
    for one in value:
        name, options = (one, {}) if isinstance(one, str) else one
        if not _PROVIDER.fullmatch(name) or name in _REMOTE:
            return "it names a provider that no file may name"
        for key, given in options.items():
            if key not in _OF_PROVIDERS or _THREADS(given):
                return "it has an option of a provider that no file may hold"
    return ""


_FLAG = _up_to(1)
_THREADS = _up_to(MOST_THREADS)

ALLOWED: Mapping[str, Bound] = {
    "intra_op_num_threads": _THREADS,
    "inter_op_num_threads": _THREADS,
    "execution_mode": _any,  # one of the choices of `ortfuse.runtime.session_settings.config`, as the next
    "graph_optimization_level": _any,
    "enable_mem_reuse": _any,
    "enable_mem_pattern": _any,
    "enable_cpu_mem_arena": _any,
    "disabled_optimizers": _names,
    "providers": _providers,
    "session.set_denormal_as_zero": _FLAG,
    "session.disable_prepacking": _FLAG,
    "session.intra_op.allow_spinning": _FLAG,
    "session.inter_op.allow_spinning": _FLAG,
    "session.force_spinning_stop": _FLAG,
    "session.intra_op.spin_duration_us": _up_to(100_000),
    "session.dynamic_block_base": _up_to(64),
    "session.use_device_allocator_for_initializers": _FLAG,
}
"""The settings that a file may hold, each with what is wrong with a value."""
