"""The class of sessions of an npm package, with the methods of sessions in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .logs import placement_in, written_profile
from .model_content import load_arguments
from .node_process import Node, node_with
from .session_options import demand_possible, js_options
from .tensors import Array, to_array, to_tensors

_RECORDS_PLACEMENT = "session.record_ep_graph_assignment_info"
"""The entry with which a session tells its placement."""

_SETTLING = 0.03
"""Seconds of runs before those that are timed."""


def class_for(
    base: Any,
    package: str,
    provider: str,
    environment: Mapping[str, str] | None = None,
    *,
    writes_files: bool = True,
) -> Any:
    """Return the class of sessions of a package.

    Args:
        base: The class of sessions in this process, which documents the methods.
        package: The npm package.
        provider: The name of the execution provider in JavaScript.
        environment: Further variables of the process.
        writes_files: Whether the package can write the optimised model to a file.
    """

    class InNode(base):  # type: ignore[misc]
        def __init__(self, source: str | bytes, weights: Mapping[str, Any], settings: Any) -> None:
            demand_possible(settings, writes_files=writes_files)
            others = dict(settings.others)
            threads = int(others.pop("intra_op_num_threads", settings.threads))
            self._recording, self._placed = others.pop(_RECORDS_PLACEMENT, "0") == "1", ""
            self._source, self._options = source, js_options(settings, others, provider)
            if self._recording:
                self._options |= {"logSeverityLevel": 0}
            self._weights = {name: _as_array(one) for name, one in weights.items()}
            self._folder, self._profile = settings.folder, settings.profile
            self._spinning, self._shortest = settings.spinning, _SETTLING
            self._place = (package, threads, environment or {})
            self._taken: Mapping[str, Any] | None = None
            self._node: Node | None = None
            self._opened()

        def _opened(self) -> Node:
            """The process that has the session, which is opened again if another session has ended the former one."""
            if self._node is None or not self._node.alive:
                node = node_with(*self._place)
                self._number = node.number()
                request: dict[str, Any] = {"action": "open", "id": self._number, "options": self._options}
                path, content, external = load_arguments(self._source, self._weights, self._folder)
                request |= {"path": path, "external": external} if path else {"external": external}
                start = node.log_size()
                answer, _ = node.ask("creates a session of the model", request, [] if path else [content])
                self._placed = node.log(start) if self._recording else ""
                self._node, self.input_names, self.output_names = node, answer["inputs"], answer["outputs"]
                self._sent = False
            return self._node

        def __del__(self) -> None:
            node = getattr(self, "_node", None)
            if node is not None:
                node.superfluous.append(self._number)  # it may be amid a message of another session

        def _create(self, source: Any, options: Any, arguments: Any) -> Any:
            raise NotImplementedError(f"its sessions are those of the npm package {package}, in JavaScript")

        def placement(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
            self._opened()
            return placement_in(self._placed)

        def run(
            self, inputs: Mapping[str, Any], only: Sequence[str] | None = None, limit: float | None = None
        ) -> list[Any]:
            described, buffers = to_tensors(inputs)
            request: dict[str, Any] = {"action": "run", "names": list(inputs), "described": described}
            node = self._opened()
            request |= {"id": self._number} if only is None else {"id": self._number, "only": list(only)}
            answer, content = node.ask("executes the model", request, buffers)
            return [to_array(one, data) for one, data in zip(answer["outputs"], content, strict=True)]

        def take(self, inputs: Mapping[str, Any]) -> None:
            self._taken, self._sent = dict(inputs), False

        def timed(self, runs: int) -> list[float]:
            node = self._opened()
            if not self._sent:
                assert self._taken is not None
                described, buffers = to_tensors(self._taken)
                request: dict[str, Any] = {
                    "action": "take",
                    "id": self._number,
                    "names": list(self._taken),
                    "described": described,
                }
                node.ask("receives inputs", request, buffers)
                self._sent = True
            settle = _SETTLING if self._spinning and self._shortest < _SETTLING else 0.0
            request = {"action": "timed", "id": self._number, "runs": runs, "settle": settle}
            found: list[float] = node.ask("executes the model", request)[0]["seconds"]
            self._shortest = min(found, default=self._shortest)
            return found

        def peak_bytes(self) -> int:
            return int(super().peak_bytes()) + self._opened().peak_bytes()

        def end_profile(self) -> str:
            node = self._opened()
            start = node.log_size()
            node.ask("writes the profile", {"action": "profile", "id": self._number})
            return written_profile(self._profile, node.log(start))

    return InNode


def _as_array(weight: Any) -> Array:
    return weight.array() if hasattr(weight, "offset") else weight  # type: ignore[no-any-return]
