"""Find the PyTorch module that a node belongs to, from exporter metadata: `encoder.layer.0.attention.self`.

PyTorch's exporters tell it in two ways: the newer one in metadata of the node (`pkg.torch.onnx.name_scopes`), the older one in
its name (`/encoder/layer.0/attention/self/MatMul`), as do TensorFlow's; there a Sequential is named once more by what it
holds (`/layer1/layer1.0/conv1/Conv` is `layer1.0.conv1`). Nodes made of others keep what these have in common
(`ortfuse.module`). It is for people: nothing is decided by it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from ortfuse.ir import walk

MODULE_KEY = "ortfuse.module"
"""Metadata of a node made of others: the module that these have in common."""

SCOPES_KEY = "pkg.torch.onnx.name_scopes"
"""Metadata by PyTorch: the modules around a node, each with its whole path, and then the node's own name."""

_NONE = "_empty_nn_module_stack"
"""PyTorch's name for the module of nodes that it made without one."""


def module_of(node: ir.Node) -> str:
    """The path of the innermost module that a node belongs to; empty if it is not known, or if that is the network itself."""
    kept = node.metadata_props.get(MODULE_KEY)
    if kept is not None:
        return kept
    scopes = node.metadata_props.get(SCOPES_KEY)
    if scopes is not None:
        around = scopes.strip("[]").split(", ")
        path = around[-2].strip("'\"") if len(around) > 1 else ""
        return "" if path.startswith(_NONE) else path
    parts = (node.name or "").strip("/").split("/")[:-1]
    inner = [*parts[1:], ""]
    return ".".join(part for part, within in zip(parts, inner, strict=False) if not within.startswith(f"{part}."))


def describe_in_module(node: ir.Node) -> str:
    """The text by which messages refer to a node, with its module unless the name tells that."""
    path = module_of(node) if {MODULE_KEY, SCOPES_KEY} & node.metadata_props.keys() else ""
    return f"{walk.describe(node)} of {path}" if path else walk.describe(node)


def common_module(paths: Iterable[str]) -> str:
    """The innermost module that holds all of these, `encoder.layer.0` of `encoder.layer.0.query` and `encoder.layer.0.key`.

    Those that are not known are left out.
    """
    found = [path.split(".") for path in dict.fromkeys(paths) if path]
    alike = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*found, strict=False))
    return ".".join(parts[0] for parts in alike)


def labels_of(modules: Mapping[str, str]) -> dict[str, str]:
    """Names for people: the path of the module where one thing alone is of it, and else with the name behind it.

    Args:
        modules: Paths of modules by names of values; empty where they are not known.
    """
    count = Counter(modules.values())
    return {
        name: name if not path else path if count[path] == 1 else f"{path} ({name})" for name, path in modules.items()
    }
