"""The command `targets`: list the targets, or store the kernel table of a build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, with_options


@with_options
def targets(
    given: Given,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TARGET]...", help="Short names, providers or folders of targets.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="File for the kernel table of the target, which --target reads."),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Run a model of one node on each target (the default).")
    ] = True,
    *,
    answer: Answer,
) -> None:
    """List the targets, and whether they run here: ortfuse targets cpu --write kernels.json

    A target is a place where models run: an execution provider of ONNX Runtime or another engine. Each has kernels, constraints,
    known bugs and costs. With --runtime, the kernels are those of a release. With --write, the kernel table of one target is
    stored, as the installed build has it or the release of --runtime. On another machine, --target takes that file.
    """
    from ortfuse.inspection.describe_targets import describe_targets
    from ortfuse.report.documents.targets import targets_document
    from ortfuse.targets import resolve_target
    from ortfuse.targets.joint_target import JointTarget

    runtime = given.get("runtime")
    named: list[str | None] = [*names] if names else [None] if write or runtime else []
    found = [resolve_target(name, runtime=runtime) for name in named]
    joint = next((one.spec.name for one in found if isinstance(one, JointTarget)), None)
    if joint is not None:
        if "," in (runtime or ""):
            raise typer.BadParameter(f"names one release, not {runtime}", param_hint="--runtime")
        raise typer.BadParameter(f"name targets one by one, with spaces, not {joint}", param_hint="[TARGET]...")
    if write is not None and len(found) != 1:
        raise typer.BadParameter(f"stores the kernel table of one target, not of {len(found)}", param_hint="--write")
    described = describe_targets(found if names or runtime else None, run=run)
    if write is not None:
        found[0].to_table(write)
    written = None if write is None else f"the kernels of {found[0].table.runtime} are in {write}"
    answer.give(targets_document(described.targets, written), described.to_dict())
