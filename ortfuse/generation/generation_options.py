"""Options of a generation, as `Generator.generate` and `stream` take them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from ortfuse.generation.sampling import Sampling

Array = np.ndarray[Any, Any]

MAX_NEW_TOKENS = 128
"""The most tokens that are generated, unless another number is given."""


class GenerationOptions(TypedDict, total=False):
    """How tokens are generated.

    Attributes:
        max_new_tokens: The most tokens to generate for each prompt; 128 by default.
        stop_tokens: Tokens that end a sequence. They are the last of its result.
        sampling: How tokens are drawn; by default the best one is taken.
        fixed: Arrays for the inputs of `interface.fixed`, such as an encoder's states.
        shared_prefix: Whether the first tokens that all prompts have in common are computed once; by default as the generator
            was made (`--shared-prefix`).
        attention_mask: [batch, tokens], 1 for the tokens of prompts and 0 for padding, on the left or on the right, as
            tokenizers give them: padding is taken away.
    """

    max_new_tokens: int
    stop_tokens: Collection[int]
    sampling: Sampling | None
    fixed: Mapping[str, Array] | None
    shared_prefix: bool | None
    attention_mask: Array | Sequence[Sequence[int]] | None


def demand_names(options: GenerationOptions) -> None:
    """Refuse unknown options.

    Raises:
        TypeError: An option is unknown.
    """
    unknown = sorted(set(options) - set(GenerationOptions.__annotations__))
    if unknown:
        raise TypeError(
            f"{unknown[0]} is no option of a generation; those are {', '.join(GenerationOptions.__annotations__)}"
        )
