"""The command `generator`: make one model for prompts and steps of a decoder with caches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, options_of, with_options
from ortfuse.cli.parsing import NO
from ortfuse.cli.shared_arguments import Model
from ortfuse.cli.terminal import progress_line
from ortfuse.options.parse_text import whole_number


@with_options
def generator(
    given: Given,
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder for model.onnx and genai_config.json."),
    ] = None,
    max_length: Annotated[
        int,
        typer.Option(
            "--max-length", parser=whole_number(1), metavar="NUMBER", help="Most tokens of a sequence, prompt included."
        ),
    ] = 4096,
    last_logits: Annotated[
        bool, typer.Option("--last-logits", help="Compute the scores after the last token of each sequence only.")
    ] = False,
    shared_prefix: Annotated[
        bool,
        typer.Option("--shared-prefix", help="Compute the first tokens that all prompts of a batch share once."),
    ] = False,
    int4: Annotated[bool, typer.Option("--int4", help="Round the weights of matrix products to 4 bits.")] = False,
    int8_caches: Annotated[bool, typer.Option("--int8-caches", help="Keep keys and values as 8-bit integers.")] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Compare whole generations with those of the decoder; write nothing if they differ."
        ),
    ] = False,
    new_tokens: Annotated[
        int,
        typer.Option(
            "--new-tokens",
            parser=whole_number(1),
            metavar="NUMBER",
            help="Tokens after each prompt that --verify compares.",
        ),
    ] = 200,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="FOLDER", help="Folder with the files of a tokenizer, to copy."),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            metavar="ROLE=NAME",
            help="Name of the tokens, mask, positions or logits, where the graph does not tell. Repeatable.",
        ),
    ] = None,
    prompt_model: Annotated[
        Path | None,
        typer.Option(
            "--prompt-model", metavar="MODEL", help="The decoder without a past, if the prompt was exported apart."
        ),
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(
            "--embeddings", metavar="MODEL", help="Model from token ids to embeddings, for a decoder that takes these."
        ),
    ] = None,
    *,
    answer: Answer,
) -> None:
    """Make a generator of a decoder with caches: ortfuse generator decoder.onnx -o folder --verify

    Attention appends to caches in place, instead of copying them for each token. One model takes prompts and steps. Its masks
    and positions follow from attention_mask. onnxruntime-genai, Optimum and ortfuse.Generator run the folder.
    """
    from ortfuse.report.documents.generator import generator_document

    options = options_of(given)
    with progress_line() as progress:
        done = ortfuse.generator(
            model, output, max_length=max_length, last_logits=last_logits, shared_prefix=shared_prefix, int4=int4,
            int8_caches=int8_caches, verify=verify, new_tokens=new_tokens,
            tokenizer=tokenizer, roles=_roles(role or ()), prompt_model=prompt_model, embeddings=embeddings,
            progress=progress, target=options.target, runtime=options.runtime,
        )  # fmt: skip
    answer.give(generator_document(model.name, done), {"model": str(model), **done.to_dict()})
    if not done.ok:
        raise typer.Exit(NO)


def _roles(given: list[str] | tuple[()]) -> dict[str, str]:
    found = {}
    for one in given:
        role, equals, name = one.partition("=")
        if not equals or role not in ("tokens", "mask", "positions", "logits"):
            raise typer.BadParameter(
                f"{one}: give tokens=NAME, mask=NAME, positions=NAME or logits=NAME", param_hint="--role"
            )
        found[role] = name
    return found
