"""Open a session of ONNX Runtime with the settings recommended for the model (`ortfuse.session`)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ortfuse.errors import ModelFileError, VerificationError
from ortfuse.io.load_and_save import metadata
from ortfuse.runtime.current_execution_target import execution_target
from ortfuse.runtime.session import shortened
from ortfuse.runtime.session_settings.config import SessionConfig
from ortfuse.runtime.session_settings.settings_in_model import config_beside, config_of
from ortfuse.runtime.session_subprocess import configure, runtime_session
from ortfuse.targets import libraries, spec_of
from ortfuse.targets.processor import demand_threads, granted_processors

if TYPE_CHECKING:
    import onnxruntime

THREADS = "intra_op_num_threads"


class Openable(Protocol):
    """A result of `ortfuse.optimize`."""

    @property
    def session(self) -> SessionConfig:
        """The settings that are recommended for it."""

    @property
    def written(self) -> Path | None:
        """The file that it was written to."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write its model to a file."""


def session(
    path: str | os.PathLike[str] | Openable,
    settings: Mapping[str, Any] | None = None,
    *,
    config: SessionConfig | None = None,
    options: onnxruntime.SessionOptions | None = None,
) -> onnxruntime.InferenceSession:
    """Open a session of a model file with the settings that were stored for it.

    The settings are those of the file beside the model (`MODEL.session.json`), else those in its metadata; the provider is
    that of the default target unless they name others. The session gets no more threads than the system grants processors (the
    quota of a container).

    `session.set_denormal_as_zero` holds for the runtime's own threads; for the thread that calls the session the runtime lets the
    first session of the process decide (numpy in that thread then takes such numbers as zero too): open such a session first.

    Args:
        path: The model file, or a result of `ortfuse.optimize`. One that was not written is written to a temporary folder for as
            long as the session is created.
        settings: Changes by the runtime's names, such as `{"intra_op_num_threads": 4}`; `None` as a value takes one out.
        config: Settings to take instead of the stored ones.
        options: Options that the settings are put into, such as those with your own libraries of operators.

    Raises:
        TypeError: It is neither a file nor a result.
        ModelFileError: The file does not exist.
        OptionError: A setting does not exist or has an invalid value, or the stored ones are damaged.
        VerificationError: The runtime refuses the model.
    """
    import onnxruntime

    if not isinstance(path, str | os.PathLike):
        return _of_result(path, settings, config, options)
    if not Path(path).is_file():
        raise ModelFileError(f"{os.fspath(path)}: no such file; check the path")
    found = (stored_config(path) if config is None else config).with_(settings or {})
    options = onnxruntime.SessionOptions() if options is None else options
    for library in libraries():
        options.register_custom_ops_library(library)
    granted = granted_processors()
    if THREADS not in found and not options.intra_op_num_threads and granted is not None:
        options.intra_op_num_threads = granted
    for name in (THREADS, "inter_op_num_threads"):
        demand_threads(getattr(options, name), name)
    arguments = {"providers": [*execution_target().session_providers()], **configure(options, found.values())}
    try:
        made: onnxruntime.InferenceSession = runtime_session(_runner(arguments), os.fspath(path), options, arguments)
        return made
    except Exception as error:
        raise VerificationError(f"{os.fspath(path)}: ONNX Runtime refuses the model: {shortened(error)}") from error


def _runner(arguments: Mapping[str, Any]) -> str:
    """The path of the file that creates sessions of the first provider; empty if the runtime does by the provider's name."""
    first = next(iter(arguments["providers"]), "")
    return spec_of(first if isinstance(first, str) else first[0]).runner_file


def _of_result(
    result: Openable,
    settings: Mapping[str, Any] | None,
    config: SessionConfig | None,
    options: onnxruntime.SessionOptions | None,
) -> onnxruntime.InferenceSession:
    """A session of a result: of its file, if that is still there, else of its model."""
    found = getattr(result, "session", None)
    if not isinstance(found, SessionConfig) or not callable(getattr(result, "save", None)):
        raise TypeError(
            f"a session is of a model file or of a result of ortfuse.optimize, not of a {type(result).__name__}"
        )
    if result.written is not None and result.written.is_file():
        return session(result.written, settings, config=config, options=options)
    config = found if config is None else config
    with tempfile.TemporaryDirectory(prefix="ortfuse.", ignore_cleanup_errors=True) as folder:
        place = Path(folder) / "model.onnx"
        result.save(place)
        return session(place, settings, config=config, options=options)


def stored_config(path: str | os.PathLike[str]) -> SessionConfig:
    """The settings that are stored for a model file: beside it, else in its metadata; none if there are none.

    Raises:
        OptionError: They are damaged.
        ModelFileError: The file is not a model.
    """
    found = config_beside(path)
    return config_of(metadata(path), os.fspath(path)) if found is None else found
