"""What would make a rule match, told from what stopped it, in words for the author of a model."""

from __future__ import annotations

import re

_ADVICE = (
    (r"needs opset (\d+), and at most", r"the result may use opset \1: give no --max-opset, or --max-opset \1 or more"),
    (r"needs opset (\d+), the model has", r"the model is exported at opset \1 or later"),
    (r"(.+) is also used by (.+)", r"nothing else uses \1: take it off \2, or compute it twice"),
    (r"(.+) is a graph output", r"\1 is no output of the model: leave it out of the outputs when exporting"),
    (r"(.+) comes from .+, not from (\S+)", r"\1 is computed by \2 in the model"),
    (r"(.+) is none of (.+)", r"one of \2 stands there"),
    (r"(.+) \(\w+\) is not a one-element constant", r"\1 is a constant number, such as an initializer of one element"),
    (r"(.+) \(\w+\) is not a constant", r"\1 is a constant: export it as a weight, not as an input or a computed value"),
    (r"(.+) is .+, not the constant (.+)", r"\1 is the constant \2"),
    (r"the constant in (.+) is (\S+), not (\S+)", r"the constants in \1 make up \3 instead of \2"),
    (r"(\S+) of (.+) is not known when the model is compiled", r"\1 of \2 is constant: export with fixed values for it"),
    (r"(\S+) of (\S+ '.*') is (.+), not (.+)", r"\1 of \2 is \4"),
    (r"(.+) \(\w+\) is not (.+)", r"\1 is \2"),
    (r"no part of (.+?) matches [(]*([\w.]+)[(]", r"an operand of the sum or product \1 is computed by \2"),
    (r"no part of (.+?) is (.+)", r"\2 is an operand of the sum or product \1 too"),
    (r"no part of (.+?) matches (.+)", r"an operand of the sum or product \1 is \2"),
    (r"(.+) has no place in", r"\1 is not part of the same sum or product: compute it before or after"),
    (r"(\w+) would have to be (.+) as well", r"\1 is \2 in both places"),
    (r"(.+) would have to be (.+)", r"\1 and \2 are the same value"),
    (r"(.+) is missing", r"\1 is there"),
    (r"(.+) is not the .+ matched before", r"both places use the same value"),
    (r"belongs to another graph", "all of it is in one graph, not partly in a branch or loop"),
    (r"has more inputs than|has an input .+ does not have|the inputs .+ differ", "it has the inputs of the pattern alone"),
    (r"gave up after", "the search is shorter: this is a limit of ortfuse, please report it"),
    (r"-inf", "the mask adds the lowest finite number of its type (torch.finfo(dtype).min) instead of -inf"),
    (r"mask are not known", "the mask is made by comparisons, Where and constants within the model, or of bool type"),
    (r"provably", "the shapes are declared so that the sizes are equal by number or by name: same name, same size"),
    (r"shapes? of .+ (is|are) not known|a shape is not known|rank", "the model's inputs declare their shapes"),
    (r"not known", "what is not known is declared: give inputs and weights a type and a shape"),
    (r"has no kernel|knows no operator|unknown type", "the model uses a type that the runtime has a kernel for, such as float32"),
    (r"(\w+ .+) is not one angle for (.+)", r"\1 had one row of angles for \2: the same batch and the same positions"),
    (r"handled by the rule of the other kind", "the other rule of the family, which is meant for this, applied"),
    (r"the check at the site failed", "the rule is right here: see `ortfuse bisect`"),
    (r"mask is broadcast over the queries", "the mask has a row for each query"),
    (r"the result would (?:be|have) (.+) instead of (.+)", r"the result were to have \2, not \1"),
    (r"(.+) at (\S+) instead of (\S+)$", r"\1 at \3, not at \2"),
)  # fmt: skip
"""Reasons of the matcher, the guards and the target, the more special first, and what has to be otherwise."""

_COMPILED = tuple((re.compile(pattern), text) for pattern, text in _ADVICE)


def advice(reason: str) -> str:
    """What would have to be so for the rule to match, as the end of a sentence that begins with "it would match if"."""
    for pattern, text in _COMPILED:
        found = pattern.search(reason)
        if found is not None:
            return found.expand(text)
    return "the opposite held there: the rule asks for it so as never to be wrong"
