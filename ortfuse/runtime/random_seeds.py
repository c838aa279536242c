"""Fix the seeds of operators that draw random numbers, so that two models with the same operators can be compared.

An operator without a seed draws from the generator of the process, and one with a seed draws other numbers in the next run of its
session. So each gets a seed that depends on the name of its result alone, and `ortfuse.runtime.session.Session` opens models
with seeds anew for each run.
"""

from __future__ import annotations

import zlib

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.inlinable_functions import looked_into
from ortfuse.ir.purity import draws_random
from ortfuse.ir.traits import RANDOM, SEEDED, has

_SEEDS = 1 << 20


def is_seeded(model: ir.Model) -> bool:
    """Whether random numbers of a model depend on seeds that it states."""
    return any(
        node.op_type in SEEDED and "seed" in node.attributes and draws_random(node) for node in walk.nodes(model)
    )


def seeded(model: ir.Model) -> ir.Model:
    """The model itself if it draws no random numbers, or a copy in which they depend on the names of results alone."""
    if not any(draws_random(node) for node in walk.nodes(model)):
        return model
    flat = looked_into(model)
    copy = flat.clone() if flat is model else flat
    for node in walk.nodes(copy):
        if draws_random(node) and has(node, SEEDED):
            seed = zlib.crc32((node.outputs[0].name or "").encode()) % _SEEDS
            kind = ir.AttrFloat32 if has(node, RANDOM) else ir.AttrInt64
            node.attributes["seed"] = kind("seed", seed)
    return copy


def unseeded(model: ir.Model) -> list[str]:
    """The operators of a model that draw random numbers whatever seeds it states, and so cannot be compared."""
    nodes = walk.nodes(looked_into(model))
    return sorted(
        {node.op_type for node in nodes if draws_random(node) and (node.domain or node.op_type not in SEEDED)}
    )
