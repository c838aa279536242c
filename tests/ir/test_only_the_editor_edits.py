"""No function outside of the editor changes a graph in a pipeline run: the calls of onnx_ir that do are not made elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

EDITOR = {"ortfuse/ir/body_copies.py", "ortfuse/ir/editor.py", "ortfuse/ir/journal.py"}

BUILDERS = {
    "ortfuse/io/": "loads, repairs and writes models, before and after a run",
    "ortfuse/verification/rule_tests/": "builds the models that rules are tried on",
    "ortfuse/runtime/bench/": "runs models",
    "ortfuse/tuning/rule_costs/": "builds both sides of rules, and runs them",
    "ortfuse/generation/": "makes a model of its own of an optimised copy of a decoder, between two runs",
    "ortfuse/verification/hidden_tokens.py": "makes copies of a model without what it computes of hidden tokens",
    "ortfuse/transforms/padding_free/pack_rows.py": "fills the branches of an If before the editor inserts it",
    "ortfuse/interop/": "builds patterns from functions, and hands models over to other packages",
    "ortfuse/runtime/": "cuts models of their own out of a model, and copies to evaluate in float64",
    "ortfuse/verification/bisection/": "makes copies of a model with other outputs",
    "ortfuse/quantization/kv_cache_quantization.py": "changes the type of inputs and outputs of a copy of a model",
    "ortfuse/quantization/run_half_models.py": "makes copies of a model in half precision that take float32, or imitate it",
    "ortfuse/quantization/emulate_half_model_in_float32.py": "makes copies of a model that round in float32",
    "ortfuse/quantization/half/": "makes copies of a model in another type, and copies that emulate it",
    "ortfuse/ir/inlinable_functions.py": "makes a copy of a model whose functions have its opset",
    "ortfuse/ir/inline_into_copy.py": "puts the bodies of functions where a copy of a model calls them",
    "ortfuse/ir/enumerate_tensors.py": "gives the places of tensors to who loads models",
    "ortfuse/targets/opset_converter_skeleton.py": "writes protobuf for the version converter",
    "ortfuse/targets/custom_operators.py": "completes a copy of a model",
    "ortfuse/transforms/onnx_ir_adapter.py": "takes over what a pass of another package made",
}
"""What builds models, or copies of them, rather than change the one that is in the pipeline."""

METHODS = {
    "replace_all_uses_with", "replace_input_with", "insert_before", "insert_after", "register_initializer", "resize_outputs",
    "resize_inputs", "prepend",
}  # fmt: skip

OF_GRAPHS = {"append", "extend", "remove", "sort", "pop", "clear", "update", "insert", "add"}
"""Methods that change a graph, or one of its collections, if they are called on one."""

COLLECTIONS = {"outputs", "inputs", "initializers", "opset_imports", "functions", "attributes"}

ATTRIBUTES = {"name", "type", "shape", "const_value", "version", "ir_version", "op_type", "domain", "doc_string"}


def modules() -> list[str]:
    files = [*(ROOT / "ortfuse").rglob("*.py"), *(ROOT / "patterns").rglob("*.py")]
    names = sorted(str(file.relative_to(ROOT)) for file in files)
    return [name for name in names if name not in EDITOR and not any(name.startswith(prefix) for prefix in BUILDERS)]


def edits(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines on which a graph is changed, as far as that can be told from how things are called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = node.func.value, node.func.attr
            by_editor = _last_name(owner) in ("editor", "_editor")
            if not by_editor and (name in METHODS or (name in OF_GRAPHS and _is_of_a_graph(owner))):
                yield node.lineno, ast.unparse(node.func)
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        targets = [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else targets
        for target in [part for whole in targets for part in _parts(whole)]:
            if isinstance(target, ast.Attribute) and target.attr in ATTRIBUTES and _last_name(target.value) != "self":
                yield target.lineno, ast.unparse(target)
            if isinstance(target, ast.Subscript) and _is_of_a_graph(target.value):
                yield target.lineno, ast.unparse(target)


def _parts(target: ast.expr) -> list[ast.expr]:
    return [part for whole in target.elts for part in _parts(whole)] if isinstance(target, ast.Tuple) else [target]


def _last_name(owner: ast.expr) -> str:
    return owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""


def _is_of_a_graph(owner: ast.expr) -> bool:
    """Whether an expression is called like a graph, or like a collection of a graph, model or node (not of `self`)."""
    if isinstance(owner, ast.Attribute) and owner.attr in COLLECTIONS:
        return not (isinstance(owner.value, ast.Name) and owner.value.id in ("self", "proto", "region"))
    return _last_name(owner) in ("graph", "root", "body")


@pytest.mark.parametrize("name", modules())
def test_a_module_changes_no_graph(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text())
    if name.startswith("patterns/"):
        # A function of a whole model, or of what builds one, makes an instance of a rule test; rules see values.
        for function in [part for part in ast.walk(tree) if _makes_an_instance(part)]:
            function.body = []  # type: ignore[attr-defined]
    assert list(edits(tree)) == []


def _makes_an_instance(part: ast.AST) -> bool:
    if not isinstance(part, ast.FunctionDef):
        return False
    given = part.args.args
    return [ast.unparse(a.annotation or a) for a in given] == ["ir.Model"] or [a.arg for a in given][:1] == ["build"]


def test_the_list_of_builders_names_what_is_there() -> None:
    assert all((ROOT / name).exists() for name in (*EDITOR, *BUILDERS))


@pytest.mark.parametrize(
    "code",
    [
        "old.replace_all_uses_with(new)",
        "node.graph.insert_before(node, [other])",
        "graph.remove(node, safe=True)",
        "del graph.initializers[name]",
        "graph.outputs[0] = value",
        "model.graph.outputs[:] = values",
        "root.opset_imports[''] = 21",
        "value.name = 'x'",
        "name, old.name = old.name, None",
        "new.type, new.shape = old.type, old.shape",
        "graph.sort()",
        "scope.root.initializers.pop(name)",
        "model.ir_version = 10",
    ],
)
def test_what_changes_a_graph_is_seen(code: str) -> None:
    assert list(edits(ast.parse(code)))


@pytest.mark.parametrize("code", ["editor.insert_before(node, other)", "self.name = name", "found.append(node)"])
def test_what_changes_none_is_not(code: str) -> None:
    assert not list(edits(ast.parse(code)))
