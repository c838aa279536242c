"""The hierarchy of errors ortfuse raises on purpose.

Every message names the file, node or value it speaks of and what the user can do. The command line prints them without a
traceback and exits with code 2. That outputs differ is an answer there and no error: its exit code is 1.
"""

from __future__ import annotations


class OrtfuseError(Exception):
    """Base class of every error that ortfuse raises on purpose."""


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
    """Rewriting went wrong: rules undo each other without end, or an edit would leave the graph invalid."""


class OptionError(OrtfuseError):
    """An option has a value that it cannot have, or two options contradict each other.

    Attributes:
        option: The name of the option, as in `ortfuse.Options`.
        text: What is wrong and what to write; other options stand in it in backquotes.
    """

    def __init__(self, option: str, text: str) -> None:
        super().__init__(f"{option}: {text}")
        self.option, self.text = option, text


class PipelineError(OrtfuseError):
    """A pipeline text, a pass list or a pass option is wrong."""


class TargetError(OrtfuseError):
    """The target runtime cannot execute what is asked, or an opset cannot be raised."""


class VerificationError(OrtfuseError):
    """The optimised model does not compute what the original computes, or that could not be checked."""


class CrashError(VerificationError):
    """The runtime crashed on a model, or hung; it did so in a process of its own."""
