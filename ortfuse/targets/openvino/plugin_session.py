"""Sessions on OpenVINO's execution provider, a plugin that the package `onnxruntime-ep-openvino` installs.

The runtime knows the provider only after its library is registered, and takes it by a device instead of by its name.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

PROVIDER = "OpenVINOExecutionProvider"
PACKAGE = "onnxruntime-ep-openvino"
DEVICE = "CPU"
"""OpenVINO's name of the device that models run on."""

CONFIGURATION = "ep.openvinoexecutionprovider.load_config"
"""The session entry with OpenVINO's own settings, in JSON: an object of settings for each device."""

_THREADS = "INFERENCE_NUM_THREADS"


def session_class(base: Any) -> Any:
    """Return the class of sessions that run on the plugin.

    Args:
        base: `ortfuse.runtime.session_subprocess.Loaded`, from which it is derived.
    """

    class OnOpenVINO(base):  # type: ignore[misc]
        """A session on OpenVINO's provider."""

        def __init__(self, source: Any, weights: Any, settings: Any) -> None:
            """Load a model as `base` does; OpenVINO gets as many threads as the runtime."""
            others = dict(settings.others)
            configured = with_threads(others.get(CONFIGURATION, ""), settings.threads)
            if configured:
                others[CONFIGURATION] = configured
            super().__init__(source, weights, replace(settings, others=tuple(others.items())))

        def _create(self, source: str | bytes, options: Any, arguments: Mapping[str, Any]) -> Any:
            """Create the runtime's session; raises RuntimeError if the plugin is missing or finds no device."""
            import onnxruntime

            device, stored = _device(), ""
            with contextlib.suppress(RuntimeError):  # the runtime raises if there is no such entry
                stored = options.get_session_config_entry(CONFIGURATION)
            configured = with_threads(stored, options.intra_op_num_threads)
            # The runtime warns of entries that are given twice.
            options.add_provider_for_devices([device], {} if configured == stored else {"load_config": configured})
            rest = {name: value for name, value in arguments.items() if name != "providers"}
            return onnxruntime.InferenceSession(source, options, **rest)

    return OnOpenVINO


def with_threads(configured: str, threads: int) -> str:
    """Return OpenVINO's settings with a number of threads, unless they have one; as they are if the number is 0.

    Args:
        configured: The settings in JSON; empty for none.
        threads: The number of threads.
    """
    settings = json.loads(configured) if configured else {}
    if not threads or _THREADS in settings.get(DEVICE, {}):
        return configured
    return json.dumps({**settings, DEVICE: {**settings.get(DEVICE, {}), _THREADS: str(threads)}})


def _device() -> Any:
    """Return the device of the plugin on which models run, and register the plugin before if it is not."""
    import onnxruntime

    found = _found()
    if found is None:
        try:
            onnxruntime.register_execution_provider_library(PROVIDER, _library())
        except Exception as error:  # of a kind that the runtime does not export
            if "already registered" not in str(error):
                raise
        found = _found()
    if found is None:
        raise RuntimeError(
            f"{PACKAGE} finds no device {DEVICE} of OpenVINO in this machine; it takes processors of Intel alone"
        )
    return found


def _found() -> Any:
    """Return the device if the plugin is registered; `None` if it is not."""
    import onnxruntime

    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]
    return next((device for device in devices if device.ep_metadata.get("ov_device") == DEVICE), None)


def _library() -> str:
    """Return the path of the plugin's library."""
    try:
        plugin = importlib.import_module("onnxruntime_ep_openvino")
    except ImportError as error:
        raise RuntimeError(
            f"{PROVIDER} is a plugin that is not installed here: `pip install {PACKAGE}` installs it"
        ) from error
    return str(plugin.get_library_path())
