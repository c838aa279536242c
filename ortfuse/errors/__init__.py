"""The hierarchy of errors that ortfuse raises on purpose.

Every message names the file, node or value concerned and says what the user can do. The command line prints these errors
without a traceback and exits with code 2. Differing outputs are an answer there, not an error: the exit code is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ortfuse.errors.escape_control_characters import visible


class OrtfuseError(Exception):
    """Base class of every error that ortfuse raises on purpose."""

    def __str__(self) -> str:
        """The message in one line, fit to be shown: names in it come from models."""
        return visible(super().__str__())


class OrtfuseWarning(UserWarning):
    """Something in a model or beside it is left aside; the message says what, and how to have it all the same."""

    def __str__(self) -> str:
        """The message in one line, fit to be shown."""
        return visible(super().__str__())


class ModelFileError(OrtfuseError):
    """A model file is missing, unreadable, not ONNX, or refers to data that cannot be used."""


class InvalidModelError(OrtfuseError):
    """The model was read but is not a valid ONNX graph (cycle, duplicate name, dangling input, unknown opset, ...)."""


class OutputError(OrtfuseError):
    """The result cannot be written; whatever stood at the output path is unchanged."""


class PatternError(OrtfuseError):
    """A pattern is built wrongly (a mistake in a rule, not in a model)."""


class RuleError(OrtfuseError):
    """A rule's declaration is incomplete or contradictory, or a rule file cannot be loaded."""


class RewriteError(OrtfuseError):
    """Rewriting went wrong: rules undo each other without end, or an edit would leave the graph invalid.

    Attributes:
        rule: The rule without which it would not, if that is known; else empty.
    """

    def __init__(self, text: str, rule: str = "") -> None:
        super().__init__(text)
        self.rule = rule


class PassError(RewriteError):
    """A pass of ortfuse itself failed on a model.

    Attributes:
        name: The pass, as in the report; empty if the result as a whole is not valid.
    """

    def __init__(self, name: str, text: str, rule: str = "") -> None:
        super().__init__(text, rule)
        self.name = name


class OptionError(OrtfuseError):
    """An option has an invalid value, or two options contradict each other.

    Attributes:
        option: The name of the option, as in `ortfuse.Options`.
        text: What is wrong and what to write instead; names of other options are in backquotes.
    """

    def __init__(self, option: str, text: str) -> None:
        super().__init__(f"{option}: {text}")
        self.option, self.text = option, text


class PipelineError(OrtfuseError):
    """A pipeline text, a pass list or a pass option is wrong."""


class UnsettledError(PassError, PipelineError):
    """Passes that are repeated find more and more to do; `name` is the last of them, without which the others settle."""


class OperatorError(OrtfuseError):
    """A description of an operator contradicts another one."""


class TargetError(OrtfuseError):
    """The target runtime cannot execute what is asked for, or an opset cannot be raised."""


class PrecisionError(OrtfuseError):
    """A model cannot be brought to a lower precision as asked: the data do not fit it, or what was chosen cannot be applied."""


class ConstraintError(OrtfuseError):
    """No choice keeps what was asked of a tuned model; the message says which limits are missed and by how much.

    Attributes:
        tried: What was tried, as `ortfuse.tuning.Point`s.
    """

    def __init__(self, message: str, tried: Sequence[Any] = ()) -> None:
        """Say why, and what was tried."""
        super().__init__(message)
        self.tried = tried


class VerificationError(OrtfuseError):
    """The optimised model does not compute what the original computes, or this could not be checked."""


class CrashError(VerificationError):
    """The runtime crashed or hung on a model, in a separate process."""


class HangError(CrashError):
    """The runtime did not answer in time, in a separate process."""


class NoSiteError(PrecisionError):
    """No quantisation scheme that was asked for is legal anywhere in the model; nothing was written."""


class BoundError(OrtfuseError):
    """No lowered model keeps its error under the bound that was asked for; nothing was written."""


class GenerationError(OrtfuseError):
    """A decoder cannot become a generator, or a generator cannot go on: its interface, its lengths or its inputs do not fit."""
