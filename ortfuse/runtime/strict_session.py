"""A session that takes only inputs on which the model is defined.

Kernels of some targets compute something for indices out of range and for shapes that do not fit, where others report an error.
Facts hold for runs that succeed, so a model and its rewritten form may differ on such inputs. The kernels of the default target
report these errors: a run on another target counts only if the default target executes it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ortfuse.errors import VerificationError
from ortfuse.runtime.current_execution_target import executing_for, execution_target
from ortfuse.runtime.session import Arrays, Session
from ortfuse.runtime.unrepresentable_models import Runnable
from ortfuse.targets import default_spec


class StrictSession(Session):
    """A session on the current target, without the runtime's own optimisations."""

    def __init__(self, model: Runnable) -> None:
        """Load `model` on the current target and, if that is another one and it loads there, on the default target.

        Raises:
            VerificationError: The runtime refuses the model on the current target.
        """
        super().__init__(model, optimise=False)
        self._default = _on_default_target(model)

    def run(
        self, inputs: Mapping[str, Any], only: Sequence[str] | None = None, *, limit: float | None = None
    ) -> Arrays:
        """Run on the default target, and return the outputs on the current one as `Session.run` does.

        Raises:
            VerificationError: One of the targets cannot execute the model on these inputs.
        """
        if self._default is not None:
            self._default.run(inputs, only, limit=limit)
        return super().run(inputs, only, limit=limit)


def _on_default_target(model: Runnable) -> Session | None:
    """A session on the default target; `None` if that executes models for the current one, or does not load this model."""
    current, default = execution_target(), default_spec()
    if not current.runner and current.session_providers() == default.session_providers():
        return None
    try:
        with executing_for(default):
            return Session(model, optimise=False, lean=True)
    except VerificationError:
        return None
