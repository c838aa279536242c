"""Kernel tables of providers from the operators that their documentation lists; it says little of types and shapes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ortfuse.errors import TargetError
from ortfuse.targets.kernel_table import Kernel, KernelTable, Operator
from ortfuse.targets.registry import default_spec
from ortfuse.targets.release_kernel_tables import newest_table


def documented(provider: str, names: Collection[tuple[str, str]], max_opset: int | None = None) -> KernelTable:
    """Return the table in which a provider executes each version of some operators on all types of their definitions.

    Args:
        provider: The execution provider.
        names: The operators, each with its domain.
        max_opset: The highest ai.onnx opset that it reads; by default that of the newest known runtime.

    Raises:
        TargetError: The operators of the runtime are not known.
    """
    known = newest_table(default_spec())
    if known is None:
        raise TargetError(f"no operators of the runtime are known, of which {provider} would have some")
    operators = {
        key: Operator(one.schemas, _kernels(one) if key in names else ()) for key, one in known.operators.items()
    }
    return replace(
        known,
        runtime=f"the documentation of {provider}, with the operators of {known.runtime}",
        provider=provider,
        operators=operators,
        max_opset=known.max_opset if max_opset is None else min(max_opset, known.max_opset),
    )


def _kernels(operator: Operator) -> tuple[Kernel, ...]:
    return tuple(Kernel(one.since, one.since, one.types) for one in operator.schemas if not one.deprecated)
