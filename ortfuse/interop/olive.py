"""Olive pass that rewrites an ONNX model into the operators that ONNX Runtime executes fastest on a target.

    import olive
    from ortfuse.interop.olive import package_config

    passes = {"fused": {"type": "OrtfuseOptimize", "verify": "whole"}}
    model = {"type": "OnnxModel", "model_path": "model.onnx"}
    olive.run({"input_model": model, "passes": passes, "output_dir": "out"}, package_config=package_config())

`python -m ortfuse.interop.olive > package.json` writes what `olive run --package-config package.json` takes. Needs
`pip install 'ortfuse[olive]'`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from ortfuse.api.optimize import optimize
from ortfuse.options import DECLARATIONS, FORMER, Options
from ortfuse.runtime.session_settings import SessionConfig
from ortfuse.targets import TargetSpec, known_targets

try:
    from olive.model import ONNXModelHandler
    from olive.model.utils import resolve_onnx_path
    from olive.package_config import OlivePackageConfig
    from olive.passes import Pass
    from olive.passes.pass_config import PassConfigParam
except ImportError as error:
    raise ImportError(f"needs Olive ({error}); install it with `pip install 'ortfuse[olive]'`") from error

_TYPES: Mapping[str, Any] = {
    "level": str, "passes": str, "purpose": str, "max_opset": int, "approximate": bool, "force": dict, "pins": dict,
    "patterns": list, "verify": str, "tolerance": float,
}  # fmt: skip
"""The options of ortfuse that the pass has, with their types; see `ortfuse.Options`."""


class OrtfuseOptimize(Pass):  # type: ignore[misc]
    """Rewrite an ONNX model with ortfuse; the settings that ortfuse recommends go into its inference settings."""

    @classmethod
    def _default_config(cls, accelerator_spec: Any) -> dict[str, PassConfigParam]:
        return {
            name: PassConfigParam(type_=kind, default_value=None, description=DECLARATIONS[FORMER.get(name, name)].help)
            for name, kind in _TYPES.items()
        }

    @classmethod
    def validate_config(cls, config: Any, accelerator_spec: Any) -> bool:
        """Whether the pass can run: there is a target for the provider."""
        known = (None, *(target.provider for target in _targets()))
        return bool(super().validate_config(config, accelerator_spec)) and accelerator_spec.execution_provider in known

    def _run_for_config(self, model: Any, config: Any, output_model_path: str) -> Any:
        given = {name: getattr(config, name) for name in _TYPES}
        options = Options(**{name: value for name, value in given.items() if value is not None})
        target = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
        target.parent.mkdir(parents=True, exist_ok=True)
        result = optimize(
            model.model_path, options.with_(output=target, target=self.accelerator_spec.execution_provider)
        )
        return ONNXModelHandler(
            model_path=str(target.parent),
            onnx_file_name=target.name,
            inference_settings=_settings(model.inference_settings, result.session),
        )


def _settings(known: Mapping[str, Any] | None, session: SessionConfig) -> dict[str, Any] | None:
    """The inference settings of a model, with those that are recommended for its result."""
    if not len(session):
        return deepcopy(dict(known)) if known else None
    found: dict[str, Any] = deepcopy(dict(known or {}))
    options = found.setdefault("session_options", {})
    for name, value in session.values().items():
        if "." in name:
            options.setdefault("extra_session_config", {}).setdefault(name, value)
        else:
            options.setdefault(name, value)
    return found


def _targets() -> list[TargetSpec]:
    """The targets that Olive has a word for."""
    return [target for target in known_targets() if target.accelerator]


def package_config() -> dict[str, Any]:
    """Olive's own configuration of its passes, and this pass."""
    found: dict[str, Any] = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text())
    found["passes"][OrtfuseOptimize.__name__] = {
        "module_path": f"ortfuse.interop.olive.{OrtfuseOptimize.__name__}",
        "supported_providers": [target.provider for target in _targets()],
        "supported_accelerators": sorted({target.accelerator for target in _targets()}),
        "supported_precisions": ["*"],
    }
    return found


if __name__ == "__main__":
    print(json.dumps(package_config(), indent=1))
