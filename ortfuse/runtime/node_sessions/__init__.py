"""Sessions of ONNX Runtime's JavaScript packages, in Node.js processes that are asked over pipes.

The runner of a target (`TargetSpec.runner`) takes its class of sessions from here, by `load_node_sessions.py`. The package
runs in the process for sessions and imports nothing of the rest of ortfuse.

| module | content |
|---|---|
| `find_packages` | Node.js and npm packages on this machine |
| `node_process` | a process of Node.js, requests and answers; `node_process.mjs` is its program |
| `session_class` | the class of sessions |
| `session_options` | session options as JavaScript has them |
| `model_content` | a model with its weights and data files, as a session is created of it |
| `tensors` | arrays as messages have them |
| `logs` | placement and profile, as the runtime prints them |
"""

from .find_packages import MODULES, NODE, NodeError, find_node, find_package
from .session_class import class_for

__all__ = ["MODULES", "NODE", "NodeError", "class_for", "find_node", "find_package"]
