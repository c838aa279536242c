"""Compare the findings of a command with those of an earlier run, and fail if they are worse (`--check FILE`)."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from ortfuse.cli.former_json import former_schema, with_keys_of_today
from ortfuse.cli.json_output import as_data, name_of
from ortfuse.cli.parsing import REGRESSED
from ortfuse.errors import InvalidModelError, OptionError
from ortfuse.io.bounded_text_files import json_in
from ortfuse.naming import number_by_name

Data = Mapping[str, Any]

NOISE = 0.98
"""A speedup that is lower by a factor nearer to 1 than this is not lower, however narrow its bounds are."""

ERRORS = 4.0
"""Rounding differs from one kernel to the next: an error must be larger by this factor to have grown."""

LONGEST = 100
"""Characters that are shown of what is wrong with a stored file."""

LEAST = 1e-6
"""Errors below this, relative to an output's largest magnitude, are rounding whatever they were before."""


def stored(path: Path | None, command: str) -> Data | None:
    """The earlier findings of the command; `None` if nothing is to be checked.

    Raises:
        OptionError: The file cannot be read, or is not of this command and version.
    """
    if path is None:
        return None
    try:
        data = json_in(path)
    except OSError as error:
        raise OptionError("check", f"{path} cannot be read: {error.strerror}; make it with --json {path}") from None
    except ValueError:
        raise OptionError("check", f"{path} is no JSON; {_made_by(command)}") from None
    found = data.get("schema") if isinstance(data, dict) else None
    if found == former_schema(command):
        data = with_keys_of_today(command, data)
    elif found != name_of(command):
        said = f"is {found}" if found else "does not say what it is"
        raise OptionError("check", f"{path} {said}, and not {name_of(command)}; {_made_by(command)}")
    known: Data = data
    with _legible():
        list(_COMPARED[command](known, known))
    return known


@contextlib.contextmanager
def _legible() -> Iterator[None]:
    """Look into what is stored, which may hold anything.

    Raises:
        OptionError: It lacks something, or has something else there.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        found = f"{type(error).__name__}: {error}"[:LONGEST]
        raise OptionError("check", f"what is stored is damaged ({found}); store it anew with --json") from None


def _made_by(command: str) -> str:
    """How a file to check against is made; under another name than that of a file that holds something else."""
    return f"a file to check against is made with `ortfuse {command} --json FILE`"


def demand_same_model(before: Data | None, model: Path) -> None:
    """Refuse what was stored of another model before minutes are spent on this one.

    Raises:
        OptionError: It is of another model.
    """
    from ortfuse.io.load_and_save import load
    from ortfuse.pipeline.report import Counts

    if before is None:
        return
    with contextlib.suppress(InvalidModelError), _legible():  # what is left as it is has counts of its own
        _demand_same(before["before"], asdict(Counts.of(load(model))))


def demand_same_names(before: Data | None, names: Iterable[str]) -> None:
    """Refuse what was stored of models that are not to be measured.

    Raises:
        OptionError: There is one.
    """
    rows = set(names)
    with _legible():
        for was in () if before is None else before["latency"]:
            if was["name"] not in rows:
                raise OptionError("check", f"{was['name']} is stored and would not be measured; name the same models")


def demand_no_regression(console: Console, command: str, before: Data | None, content: Data) -> None:
    """Print where it has become worse, and end with code 3 if it has; nothing if nothing is to be checked.

    Raises:
        OptionError: What was stored is of another model.
        typer.Exit: It has become worse.
    """
    if before is None:
        return
    now = as_data(command, content)
    with _legible():
        other = {
            name: (was, now["versions"][name])
            for name, was in before["versions"].items()
            if name in now["versions"] and was != now["versions"][name]
        }
        found = list(_COMPARED[command](before, now))
    for name, (was, this) in other.items():
        console.print(f"stored with {name} {was}, and this is {this}", markup=False, highlight=False)
    for line in found:
        console.print(f"WORSE: {line}", markup=False, highlight=False)
    if found:
        raise typer.Exit(REGRESSED)
    console.print("not worse than what is stored", markup=False, highlight=False)


def _of_optimize(before: Data, now: Data) -> Iterator[str]:
    _demand_same(before["before"], now["before"])
    if now["unchanged"] and not before["unchanged"]:
        yield f"the model is left as it is: {now['unchanged']}"
        return
    yield from _more("nodes", before["after"]["nodes"], now["after"]["nodes"])
    yield from _fewer_sites(_sites(before), _sites(now))
    if before["latency"] and now["latency"]:
        yield from _slower("the result", before["latency"][-1], now["latency"][-1])
    yield from _further_off(before["verdict"], now["verdict"])


def _demand_same(before: Data, now: Data) -> None:
    names = [*before["operators"], *now["operators"]]
    for name in names:
        was, this = (one["operators"].get(name, 0) for one in (before, now))
        if was != this:
            nodes = (
                f"of {before['nodes']} nodes, {was} of them {name}; this one has {now['nodes']}, {this} of them {name}"
            )
            raise OptionError("check", f"what is stored is of another model, {nodes}; store it anew")


def _of_bench(before: Data, now: Data) -> Iterator[str]:
    rows = {row["name"]: row for row in now["latency"]}
    demand_same_names(before, rows)
    for was in before["latency"]:
        this = rows[was["name"]]
        if this["crash"] and not was["crash"]:
            yield f"{was['name']}: {this['crash']}"
            continue
        yield from _more(f"{was['name']}: nodes", was["nodes"], this["nodes"])
        yield from _slower(was["name"], was, this)


def _of_sweep(before: Data, now: Data) -> Iterator[str]:
    rows = {row["model"]: row for row in now["rows"]}
    for was in before["rows"]:
        name, this = was["model"], rows.get(was["model"])
        if this is None:
            yield f"{name}: is not there any more"
        elif this["status"] != "ok":
            if was["status"] == "ok":
                yield f"{name}: {this['status']}: {this['reason']}"
        elif was["status"] == "ok":
            yield from _more(f"{name}: nodes", was["nodes_after"], this["nodes_after"])
            yield from (f"{name}: {line}" for line in _fewer_sites(_sites(was), _sites(this)))
            yield from _slower(name, *({**row, "executed": row["executed"][1]} for row in (was, this)))


_COMPARED = {"optimize": _of_optimize, "bench": _of_bench, "sweep": _of_sweep}


def _more(what: str, before: int, now: int) -> Iterator[str]:
    if now > before:
        yield f"{what}: {before} became {now}"


def _fewer_sites(before: Mapping[str, int], now: Mapping[str, int]) -> Iterator[str]:
    for family, count in before.items():
        if now.get(family, 0) < count:
            yield f"sites of {family}: {count} became {now.get(family, 0)}"


def _sites(data: Data) -> Mapping[str, int]:
    """The sites of each family, fused or improved: how many were one operator before is a matter of the exporter."""
    return Counter(number_by_name(Counter(data["families"]) + Counter(data.get("improved", {})), "families"))


def _slower(name: str, before: Data, now: Data) -> Iterator[str]:
    """Whether more is executed, and whether the speedup is lower beyond the bounds of both measurements."""
    if before.get("executed") and now.get("executed"):
        yield from _more(f"{name}: executed operators", before["executed"], now["executed"])
    was, this = before["speedup_bounds"], now["speedup_bounds"]
    if was and this and this[1] < was[0] and now["speedup"] < NOISE * before["speedup"]:
        yield f"{name}: speedup {_with_bounds(before['speedup'], was)} became {_with_bounds(now['speedup'], this)}"


def _with_bounds(speedup: float, bounds: Sequence[float]) -> str:
    return f"{speedup:.3f} ({bounds[0]:.3f} to {bounds[1]:.3f})"


def _further_off(before: Data | None, now: Data | None) -> Iterator[str]:
    if before is None or now is None:
        return
    was, this = (_largest(verdict) for verdict in (before, now))
    if this > max(ERRORS * was, LEAST):
        yield f"largest error of an output, relative to its magnitude: {was:.3g} became {this:.3g}"


def _largest(verdict: Data) -> float:
    errors = (output["relative"] for trial in verdict["trials"] for output in trial["outputs"])
    return max((float("inf") if error is None else error for error in errors), default=0.0)
