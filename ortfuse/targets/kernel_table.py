"""Kernel tables: which operators a runtime build defines, and the types for which one of its providers has a kernel.

A table is read from the installed ONNX Runtime, or from a JSON file written on another machine, so that a model can be
compiled for a runtime that is not installed here. It only holds data; :mod:`ortfuse.targets.target` answers questions
from it.

The JSON form is one object: ``format`` (2; in format 1 operators lack the names of their attributes), ``runtime``,
``provider``, ``max_opset``, ``max_ir_version``, ``type_sets`` (lists of ONNX type strings such as ``tensor(float)``,
referred to by index) and ``operators``: one object for each operator with ``domain``, ``name``, ``schemas`` and ``kernels``.
It may also contain empirical findings about the provider: ``limits`` (:mod:`ortfuse.targets.declarative_constraints`),
``costs`` (in the form of a cost file) and ``quirks`` (names of :class:`ortfuse.targets.known_bugs.Quirk`). For each of these
that is absent, ortfuse's own findings on the provider are used.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from ortfuse.errors import OutputError, TargetError
from ortfuse.io.atomic_write import write_text
from ortfuse.io.bounded_text_files import from_json, read_text
from ortfuse.io.installed_runtime import demand_runtime
from ortfuse.io.read_kernel_registry import Definition, definitions
from ortfuse.targets.declarative_constraints import StatedLimit
from ortfuse.targets.kernel_constraints import Limit
from ortfuse.targets.known_bugs import KnownBug, Quirk
from ortfuse.targets.registry import default_spec, known_targets
from ortfuse.targets.rule_speedups import CostTable
from ortfuse.targets.target_spec import release_of

FORMAT = 2
_READABLE = (1, FORMAT)
# The end of a kernel's version range if the runtime leaves it open.
OPEN_END = 2147483647


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal input or output: its name, and its type as a type-constraint name (``T``) or a concrete type string."""

    name: str
    type: str
    optional: bool = False
    variadic: bool = False
    homogeneous: bool = True


@dataclass(frozen=True, slots=True)
class Schema:
    """One version of an operator's definition.

    Attributes:
        since: The version of its domain from which on it holds.
        inputs: The formal inputs.
        outputs: The formal outputs.
        types: The types that each type constraint allows, by its name.
        deprecated: Whether the operator is no longer part of its domain.
        attributes: The names of its attributes; `None` if they are not known.
    """

    since: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    types: Mapping[str, frozenset[str]]
    deprecated: bool = False
    attributes: frozenset[str] | None = None

    def allowed(self, formal: Formal) -> frozenset[str]:
        """Return the ONNX type strings that `formal` may have."""
        return self.types.get(formal.type, frozenset((formal.type,)))


@dataclass(frozen=True, slots=True)
class Kernel:
    """A registered kernel: the operator versions it serves, and the types it takes by constraint name or formal name."""

    first: int
    last: int
    types: Mapping[str, frozenset[str]]

    def serves(self, since: int) -> bool:
        """Tell whether the kernel runs an operator whose schema is of version `since`.

        This is the runtime's own rule: a kernel with an open-ended range serves the version it starts at and no later
        schema, because later schemas were not known when the kernel was registered.
        """
        return self.first == since or (self.first < since <= self.last and self.last != OPEN_END)


@dataclass(frozen=True, slots=True)
class Operator:
    """All versions of one operator, oldest first, and its kernels."""

    schemas: tuple[Schema, ...]
    kernels: tuple[Kernel, ...]

    def at(self, opset: int) -> Schema | None:
        """Return the schema in force at `opset` of the operator's domain, or None before the first one."""
        best = None
        for schema in self.schemas:
            if schema.since > opset:
                break
            best = schema
        return best


@dataclass(frozen=True)
class Findings:
    """A table's statements about its provider beyond the kernels; `None` for those that it lacks."""

    limits: tuple[tuple[tuple[str, str], Limit], ...] | None = None
    costs: CostTable | None = None
    quirks: frozenset[KnownBug] | None = None


@dataclass(frozen=True)
class KernelTable:
    """Every operator of one runtime build, with the kernels of one execution provider.

    `max_opset` is the highest ai.onnx opset, and `max_ir_version` the highest IR version, that the build loads.
    """

    runtime: str
    provider: str
    max_opset: int
    max_ir_version: int
    operators: Mapping[tuple[str, str], Operator]
    findings: Findings = Findings()

    @classmethod
    def of_runtime(cls, provider: str) -> KernelTable:
        """Read the table of the installed ONNX Runtime.

        Raises:
            RegistryError: the runtime crashes when it is asked for its kernels.
            TargetError: the installed build has no kernels for `provider`, or no runtime is installed.
        """
        demand_runtime()
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as runtime  # importing the runtime is slow

        kernels = defaultdict(list)
        providers = set()
        for definition in definitions():
            providers.add(definition.provider)
            if definition.provider == provider:
                kernels[definition.domain, definition.name].append(_kernel(definition))
        if provider not in providers:
            known = ", ".join(sorted(providers))
            names = ", ".join(spec.name for spec in known_targets())
            raise TargetError(
                f"onnxruntime {onnxruntime.__version__} has no kernels for {provider!r}; it has {known}. "
                f"Targets with a folder: {names}. Install the build that has it, or load a table written by Target.to_table on a "
                "machine that does."
            )
        schemas = defaultdict(list)
        for schema in runtime.get_all_operator_schema():
            if _is_public(schema.domain, schema.name, schema.since_version):
                schemas[schema.domain, schema.name].append(_read_schema(schema))
        operators = {
            key: Operator(tuple(sorted(versions, key=lambda schema: schema.since)), tuple(kernels.get(key, ())))
            for key, versions in schemas.items()
        }
        return cls(
            runtime=f"onnxruntime {onnxruntime.__version__}",
            provider=provider,
            max_opset=_max_opset(),
            max_ir_version=_max_ir_version(),
            operators=operators,
        )

    @property
    def release(self) -> tuple[int, ...]:
        """The release of ONNX Runtime, such as (1, 20); one above all others if the table does not say it."""
        return release_of(self.runtime)

    def for_installed(self) -> KernelTable:
        """The table as far as the installed runtime loads models: with its limits, if they are lower."""
        import onnxruntime

        return replace(
            self,
            runtime=f"onnxruntime {onnxruntime.__version__} with the kernels of {self.runtime}",
            max_opset=min(self.max_opset, _max_opset()),
            max_ir_version=min(self.max_ir_version, _max_ir_version()),
        )

    @classmethod
    def of_file(cls, path: str | Path) -> KernelTable:
        """Read a table from the JSON file at `path`.

        Raises:
            TargetError: the file cannot be read or is not a table of this format.
        """
        try:
            text = read_text(path)
        except OSError as error:
            raise TargetError(f"{path}: cannot read the kernel table: {error.strerror}") from error
        except ValueError as error:
            raise TargetError(f"{path}: not a kernel table as Target.to_table writes it ({error})") from error
        return cls.of_text(text, str(path))

    @classmethod
    def of_text(cls, text: str, where: str) -> KernelTable:
        """Read a table from JSON; `where` is what errors say it is from.

        Raises:
            TargetError: the text is not a table of this format.
        """
        try:
            data = from_json(text)
            if data["format"] not in _READABLE:
                raise TargetError(f"{where}: kernel table format {data['format']}, this version reads up to {FORMAT}")
            return _from_json(data)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise TargetError(
                f"{where}: not a kernel table as Target.to_table writes it ({type(error).__name__}: {error})"
            ) from error

    def write(self, path: str | Path, *, follow: bool = True) -> None:
        """Write the table as JSON to `path`.

        Args:
            path: The file.
            follow: As for `ortfuse.io.atomic_write.write_bytes`.

        Raises:
            TargetError: the file cannot be written.
        """
        try:
            write_text(Path(path), json.dumps(_to_json(self), separators=(",", ":")) + "\n", follow=follow)
        except OutputError as error:
            raise TargetError(str(error)) from error


def _is_public(domain: str, name: str, since: int) -> bool:
    """Whether an operator version may be used, which early versions of ONNX operators that only the runtime has may not.

    LayerNormalization 1 is one: in a model of opset 16 the checker and every other tool would reject it. Operators that
    ONNX does not define at all, such as SimplifiedLayerNormalization, are the runtime's own and are kept.
    """
    if domain or not onnx.defs.has(name, ""):
        return True
    try:
        return bool(onnx.defs.get_schema(name, since, "").since_version == since)
    except onnx.defs.SchemaError:
        return False


def _kernel(definition: Definition) -> Kernel:
    types = {name: frozenset(allowed) for name, allowed in definition.types.items()}
    return Kernel(definition.first, definition.last, types)


def _read_schema(schema: Any) -> Schema:
    return Schema(
        since=schema.since_version,
        inputs=tuple(_read_formal(schema, formal) for formal in schema.inputs),
        outputs=tuple(_read_formal(schema, formal) for formal in schema.outputs),
        types={c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints},
        deprecated=schema.deprecated,
        attributes=frozenset(schema.attributes),
    )


def _read_formal(schema: Any, formal: Any) -> Formal:
    options = schema.FormalParameterOption
    return Formal(
        name=formal.name,
        type=formal.typeStr,
        optional=formal.option == options.Optional,
        variadic=formal.option == options.Variadic,
        homogeneous=formal.isHomogeneous,
    )


def _max_opset() -> int:
    return _highest_loadable(onnx.defs.onnx_opset_version(), lambda n: _loads(opset=n))


def _max_ir_version() -> int:
    return _highest_loadable(int(onnx.IR_VERSION), lambda n: _loads(ir_version=n))


def _highest_loadable(newest: int, loads: Callable[[int], bool]) -> int:
    # The runtime publishes neither the opset nor the IR version it supports (its schemas go beyond what it loads); the only
    # way to find out is whether it refuses a model.
    for candidate in range(newest, 0, -1):
        if loads(candidate):
            return candidate
    raise TargetError("the installed ONNX Runtime does not even load a model of one Identity node; reinstall it")


def _loads(opset: int = 13, ir_version: int = 8) -> bool:
    import onnxruntime

    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "probe", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=[*default_spec().session_providers()]
        )
    except Exception:  # the runtime's exceptions share no base class
        return False
    return True


class TypeSets:
    """Numbers the distinct sets of type strings, so that a file contains each only once."""

    def __init__(self) -> None:
        self._numbers: dict[frozenset[str], int] = {}

    def number(self, types: frozenset[str]) -> int:
        """The number of a set."""
        return self._numbers.setdefault(types, len(self._numbers))

    def numbered(self, types: Mapping[str, frozenset[str]]) -> dict[str, int]:
        """The numbers of sets that have names."""
        return {name: self.number(allowed) for name, allowed in types.items()}

    def listed(self) -> list[list[str]]:
        """All sets, in the order of their numbers."""
        return [sorted(types) for types in self._numbers]


def operator_to_json(domain: str, name: str, operator: Operator, sets: TypeSets) -> dict[str, Any]:
    """Return an operator as a table lists it."""
    return {
        "domain": domain,
        "name": name,
        "schemas": [
            {
                "since": schema.since,
                "inputs": _formals_to_json(schema.inputs),
                "outputs": _formals_to_json(schema.outputs),
                "types": sets.numbered(schema.types),
                "deprecated": schema.deprecated,
                **({} if schema.attributes is None else {"attributes": sorted(schema.attributes)}),
            }
            for schema in operator.schemas
        ],
        "kernels": [[kernel.first, kernel.last, sets.numbered(kernel.types)] for kernel in operator.kernels],
    }


def operator_of_json(entry: Mapping[str, Any], sets: Sequence[frozenset[str]]) -> Operator:
    """Return an operator that a table lists.

    Raises:
        KeyError, TypeError, IndexError: The entry is malformed.
    """

    def types(numbers: Mapping[str, int]) -> dict[str, frozenset[str]]:
        return {name: sets[number] for name, number in numbers.items()}

    return Operator(
        schemas=tuple(
            Schema(
                since=schema["since"],
                inputs=tuple(Formal(*formal) for formal in schema["inputs"]),
                outputs=tuple(Formal(*formal) for formal in schema["outputs"]),
                types=types(schema["types"]),
                deprecated=schema["deprecated"],
                attributes=frozenset(schema["attributes"]) if "attributes" in schema else None,
            )
            for schema in entry["schemas"]
        ),
        kernels=tuple(Kernel(first, last, types(numbers)) for first, last, numbers in entry["kernels"]),
    )


def _to_json(table: KernelTable) -> dict[str, Any]:
    sets = TypeSets()
    operators = [
        operator_to_json(domain, name, operator, sets) for (domain, name), operator in sorted(table.operators.items())
    ]
    return {
        "format": FORMAT,
        "runtime": table.runtime,
        "provider": table.provider,
        "max_opset": table.max_opset,
        "max_ir_version": table.max_ir_version,
        "type_sets": sets.listed(),
        "operators": operators,
    }


def _formals_to_json(formals: Iterable[Formal]) -> list[list[Any]]:
    return [[f.name, f.type, f.optional, f.variadic, f.homogeneous] for f in formals]


def _from_json(data: Mapping[str, Any]) -> KernelTable:
    sets = [frozenset(types) for types in data["type_sets"]]
    operators = {(op["domain"], op["name"]): operator_of_json(op, sets) for op in data["operators"]}
    return KernelTable(
        data["runtime"], data["provider"], data["max_opset"], data["max_ir_version"], operators, _findings(data)
    )


def _findings(data: Mapping[str, Any]) -> Findings:
    limits = [StatedLimit.from_json(limit) for limit in data.get("limits", ())]
    return Findings(
        tuple(((limit.domain, limit.name), limit.check) for limit in limits) if "limits" in data else None,
        CostTable.from_json(data["costs"]) if "costs" in data else None,
        frozenset(Quirk[name] for name in data["quirks"]) if "quirks" in data else None,
    )
