"""Check that a node is a legal use of its operator: domain imported, operator known, operands and attributes valid.

The answer depends on little more than the operator and the number of its operands, so it is computed once per combination
in a graph and cached.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

import onnx
import onnx_ir
from onnx import defs

from ortfuse.errors import InvalidModelError
from ortfuse.io.read_kernel_registry import RegistryError, definitions

ONNX_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training"})
"""The domains whose operators ONNX itself defines. All others are open: anyone may define operators there."""

_INTERNAL = "__"
"""Attributes whose names start so are notes of tools; onnx and the runtime let them pass."""

Key = tuple[object, ...]


class OperatorCheck:
    """The check of all nodes that share one set of opset imports.

    Args:
        imports: Domain to version, of the model or of the function that holds the nodes.
        functions: Identifiers of the model's own functions.
        in_function: Whether attributes may refer to attributes of the enclosing function.
    """

    def __init__(
        self, imports: Mapping[str, int], functions: Collection[onnx_ir.OperatorIdentifier], *, in_function: bool
    ) -> None:
        self.imports = imports
        self._functions = functions
        self._in_function = in_function
        self._problems: dict[Key, str | None] = {}

    def problem(self, node: onnx_ir.Node) -> str | None:
        """The fault of a node, as text; None if there is none."""
        inputs = node.inputs
        key: Key = (
            node.domain,
            node.op_type,
            node.overload,
            len(node.outputs),
            tuple([value is None for value in inputs]) if None in inputs else len(inputs),
            tuple([(a.name, a.type, a.ref_attr_name) for a in node.attributes.values()]),
        )
        if key not in self._problems:
            self._problems[key] = self._find_problem(node)
        return self._problems[key]

    def _find_problem(self, node: onnx_ir.Node) -> str | None:
        if not node.op_type:
            return "has no operator type"
        if (found := self._attribute_problem(node)) is not None:
            return found
        version = self.imports.get(node.domain)
        if version is None:
            return (
                f"uses the operator domain '{node.domain or 'ai.onnx'}', which is not among the opset imports "
                f"({_listed(self.imports)}); add it to opset_import"
            )
        if node.domain not in ONNX_DOMAINS or node.op_identifier() in self._functions:
            return None
        try:
            schema = defs.get_schema(node.op_type, version, node.domain)
        except defs.SchemaError:
            return self._unknown_operator(node, version)
        return _signature_problem(node, schema, version)

    def _attribute_problem(self, node: onnx_ir.Node) -> str | None:
        for attribute in node.attributes.values():
            if isinstance(attribute.name, bytes):
                return f"has an attribute whose name {attribute.name!r} is not UTF-8; the file is damaged"
            if attribute.is_ref() and not self._in_function:
                return (
                    f"has the attribute '{attribute.name}' that refers to a function's attribute, but is in no function"
                )
            if attribute.type == onnx_ir.AttributeType.UNDEFINED:
                return f"has the attribute '{attribute.name}' without a type; models of 2017 lack it: export again"
        return None

    def _unknown_operator(self, node: onnx_ir.Node, version: int) -> str | None:
        since = _runtime_operators().get((node.domain, node.op_type))
        if since is not None and since <= version:
            return None
        domain = node.domain or "ai.onnx"
        newest = defs.onnx_opset_version()
        later = any(s.name == node.op_type and s.domain == node.domain for s in defs.get_all_schemas())
        if later:
            return (
                f"uses an operator that {domain} opset {version} does not have; import a newer opset (up to {newest})"
            )
        return (
            f"uses an operator that is not part of {domain} opset {version}; "
            "a custom operator needs a domain of its own, or a model-local function that defines it"
        )


def _signature_problem(node: onnx_ir.Node, schema: defs.OpSchema, version: int) -> str | None:
    """The fault of a node according to its operator's schema."""
    if schema.deprecated and not _comes_back(schema):
        return f"uses an operator that was removed in opset {schema.since_version} (the model imports {version})"
    return _operand_problem(node, schema) or _schema_attribute_problem(node, schema)


def _comes_back(schema: defs.OpSchema) -> bool:
    """Whether a later opset has the operator again, as with GroupNormalization 18: the runtime executes such a version."""
    newest = defs.get_schema(schema.name, defs.onnx_opset_version(), schema.domain)
    return newest.since_version > schema.since_version and not newest.deprecated


def _operand_problem(node: onnx_ir.Node, schema: defs.OpSchema) -> str | None:
    for what, count, low, high in (
        ("inputs", len(node.inputs), schema.min_input, schema.max_input),
        ("outputs", len(node.outputs), schema.min_output, schema.max_output),
    ):
        if not low <= count <= high:
            return f"has {count} {what}; the operator takes {low if low == high else f'{low} to {high}'}"
    for value, formal in zip(node.inputs, schema.inputs, strict=False):
        if value is None and formal.option == defs.OpSchema.FormalParameterOption.Single:
            return f"leaves out its input '{formal.name}', which is not optional"
    return None


def _schema_attribute_problem(node: onnx_ir.Node, schema: defs.OpSchema) -> str | None:
    known = schema.attributes
    for attribute in node.attributes.values():
        if attribute.name not in known:
            if attribute.name.startswith(_INTERNAL) or _runtime_had_it_first(node):
                continue
            return f"has the attribute '{attribute.name}', which the operator does not have in this opset"
        formal_type = str(known[attribute.name].type).removeprefix("AttrType.")
        if formal_type != attribute.type.name:
            return f"has the attribute '{attribute.name}' with type {attribute.type.name} instead of {formal_type}"
    for name, formal in known.items():
        if formal.required and name not in node.attributes:
            return f"lacks the attribute '{name}', which the operator requires"
    return None


@functools.cache
def _first_version(domain: str, op_type: str) -> int:
    """The first opset at which ONNX defines an operator."""
    return min(s.since_version for s in defs.get_all_schemas_with_history() if (s.domain, s.name) == (domain, op_type))


def _runtime_had_it_first(node: onnx_ir.Node) -> bool:
    """Whether the runtime had the operator before ONNX defined it; then it lets attributes pass that neither knows."""
    since = _runtime_operators().get((node.domain, node.op_type))
    return since is not None and since < _first_version(node.domain, node.op_type)


_LATEST = 2**31 - 1
"""The largest version of a domain of operators: those of onnx are integers of 32 bits."""


def check_imports(imports: Mapping[str, int], *, name: str) -> None:
    """Check the opset imports of a model or function.

    Raises:
        InvalidModelError: A version is not positive, or is newer than the installed `onnx` supports or can look up.
    """
    for domain, version in imports.items():
        if not 1 <= version <= _LATEST:
            raise InvalidModelError(f"{name}: imports version {version} of the operator domain '{domain or 'ai.onnx'}'")
    newest = defs.onnx_opset_version()
    if imports.get("", 1) > newest:
        raise InvalidModelError(
            f"{name}: imports opset {imports['']}; the installed onnx {onnx.__version__} knows opsets up to {newest}: "
            "upgrade onnx or export with an older opset"
        )


@functools.cache
def _runtime_operators() -> dict[tuple[str, str], int]:
    """The first opset with a kernel for each operator of the installed ONNX Runtime, by domain and name.

    In ONNX's domain it has some operators that ONNX does not define, such as SimplifiedLayerNormalization, or did not yet
    define at that opset, such as LayerNormalization before 17.
    """
    first: dict[tuple[str, str], int] = {}
    try:
        found = [(one.domain, one.name, one.first) for one in definitions()]
    except RegistryError:  # what it has schemas for comes closest
        from onnxruntime.capi import onnxruntime_pybind11_state as runtime

        found = [(one.domain, one.name, one.since_version) for one in runtime.get_all_operator_schema()]
    for domain, name, version in found:
        first[domain, name] = min(version, first.get((domain, name), version))
    return first


def _listed(imports: Mapping[str, int]) -> str:
    return ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in imports.items()) or "none"
