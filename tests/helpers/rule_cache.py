"""Take rule tests from a cache if they passed before with the same rule, engine and runtime.

A test with the mark `rule_test` is about one rule: a parameter of it is the rule, or a text that begins with the rule's name.
Its key is a hash of:

- the test's name, its file and what that imports: the engine, and helpers of tests;
- the rule's file and what that imports: more of the engine, and shared sub-patterns;
- the versions of Python, the runtime and the libraries, and the kind of processor.

Each change of the engine makes all keys new, so that all rule tests run. Only passes are kept. The folder is `--rule-cache DIR`,
by default one of pytest's own cache; `--no-rule-cache`, and naming a test on the command line (`FILE::TEST`), run everything.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from source_closure import Sources

MARK = "rule_test"
TAKEN = "passed before with this rule, engine and runtime"
FILE = "passed.json"
PLACE = "ORTFUSE_RULE_CACHE"
"""The variable in which `.ci/run` is told a folder."""
MOST = 20_000
"""The most passes that are kept, the latest ones: those of the last ten or so states of the engine."""

_PROPERTY = "rule test"
_TESTS = Path(__file__).resolve().parents[1]

KeyOf = Callable[[pytest.Item], str | None]
"""Returns the key of a test; `None` if it is never taken from the cache."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rule tests")
    group.addoption(
        "--rule-cache", metavar="DIR", default=None,
        help="keep passes of rule tests in this folder, and take them from there if rule, engine and runtime are the same",
    )  # fmt: skip
    group.addoption("--no-rule-cache", action="store_true", help="run all rule tests, and keep no pass")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}: a test of one rule, which need not run again if nothing has changed")
    if not config.getoption("--no-rule-cache"):
        config.pluginmanager.register(RuleCache(config, RuleKeys.of_the_catalogue), "rule cache in use")


class RuleKeys:
    """The keys of rule tests.

    Args:
        sources: The engine, the rules and the tests.
        files: The file of each rule, by the rule's name.
        surroundings: What else a result depends on, by name.
    """

    def __init__(self, sources: Sources, files: Mapping[str, Path], surroundings: Mapping[str, str]) -> None:
        self._sources, self._files = sources, files
        self._surroundings = json.dumps(dict(surroundings), sort_keys=True)

    @classmethod
    def of_the_catalogue(cls) -> RuleKeys:
        """The keys in this environment, for the built-in rules."""
        import ortfuse
        from ortfuse.pipeline import load_catalogue

        rules = importlib.import_module("ortfuse.patterns")

        roots = {
            "ortfuse": Path(ortfuse.__path__[0]).resolve(), "ortfuse.patterns": Path(rules.__path__[0]).resolve(),
            "tests": _TESTS, "": _TESTS / "helpers",
        }  # fmt: skip
        files = {rule.name: Path(file.origin).resolve() for file in load_catalogue([]).files for rule in file.rules}
        return cls(Sources(roots, lazy=["ortfuse"]), files, surroundings())

    def __call__(self, item: pytest.Item) -> str | None:
        """The key of a test; `None` if it is about no rule whose file is known."""
        rule = (
            next(filter(None, map(self._rule, item.callspec.params.values())), None)
            if hasattr(item, "callspec")
            else None
        )
        return None if rule is None else self.key(item.nodeid, item.path, rule)

    def _rule(self, parameter: Any) -> str | None:
        name = parameter if isinstance(parameter, str) else getattr(parameter, "name", None)
        first = name.partition(" ")[0] if isinstance(name, str) else None
        return first if first in self._files else None

    def key(self, test: str, path: Path, rule: str) -> str | None:
        """The key of a test in the file `path`, about a rule; `None` if a file is not among the sources."""
        try:
            modules = (self._sources.module(path), self._sources.module(self._files[rule]))
        except KeyError:
            return None
        sources = self._sources.hash(*modules)
        return hashlib.sha256("\0".join((test, sources, self._surroundings)).encode()).hexdigest()[:32]


def surroundings() -> dict[str, str]:
    """The conditions of a rule test besides sources: versions, processor, and variables that change what is run."""
    import ml_dtypes
    import numpy as np
    import onnx
    import onnx_ir as ir
    import onnxruntime

    return {
        "python": sys.version, "system": platform.platform(), "processor": _processor(), "numpy": np.__version__,
        "ml_dtypes": ml_dtypes.__version__, "onnx": onnx.__version__, "onnx_ir": ir.__version__,
        "onnxruntime": f"{onnxruntime.__version__} {onnxruntime.get_build_info()}",
        "variables": str(sorted(one for one in os.environ.items() if one[0].startswith(("ORT", "OMP_")) and one[0] != PLACE)),
        "conftest": (_TESTS / "conftest.py").read_text(encoding="utf-8"),
    }  # fmt: skip


def _processor() -> str:
    """The description of the first processor by the system: the runtime selects kernels by its instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = ("model name", "flags", "Features", "CPU part")
    return " ".join([platform.machine(), *(line for line in lines if line.startswith(told))])


class RuleCache:
    """The plugin of one run; with xdist, the workers are told by the controller, which keeps the passes."""

    def __init__(self, config: pytest.Config, keys: Callable[[], KeyOf]) -> None:
        self._keys = keys
        self._told: list[str] | None = getattr(config, "workerinput", {}).get(_PROPERTY)
        self._is_worker = hasattr(config, "workerinput")
        self._folder = None if self._is_worker else _folder(config)
        self._known = {} if self._folder is None else read(self._folder / FILE)
        named = any("::" in str(argument) for argument in config.invocation_params.args)
        self._usable = frozenset(self._told or ()) if self._is_worker else frozenset(() if named else self._known)
        self._passed: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of xdist."""
        node.workerinput[_PROPERTY] = sorted(self._usable)

    @pytest.hookimpl(trylast=True)  # after -m and -k have deselected: keys take a second
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        marked = [item for item in items if item.get_closest_marker(MARK)]
        key_of = self._keys() if marked else lambda item: None
        for item in marked:
            key = key_of(item)
            if key is not None:
                item.user_properties.append((_PROPERTY, key))
                if key in self._usable:
                    item.add_marker(pytest.mark.skip(reason=TAKEN), append=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        key = dict(report.user_properties).get(_PROPERTY)
        if key is None:
            return
        if report.failed:
            self._failed.add(str(key))
        elif _is_taken(report):
            self._taken[str(key)] = report.nodeid
        elif report.passed and report.when == "call":
            self._passed[str(key)] = report.nodeid

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        return ("cached", "c", "CACHED") if _is_taken(report) else None

    def pytest_sessionfinish(self) -> None:
        if self._folder is not None and (self._passed or self._failed):
            used = self._taken | self._passed
            kept = {key: test for key, test in read(self._folder / FILE).items() if key not in used} | used
            write(self._folder / FILE, [one for one in kept.items() if one[0] not in self._failed][-MOST:])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._taken or self._passed or self._failed:
            run = len(self._passed.keys() | self._failed)
            where = f" {self._folder}" if self._folder is not None else ""
            terminalreporter.write_line(
                f"rule tests: {len(self._taken)} taken from the cache{where}, {run} run (--no-rule-cache runs all)"
            )


def _is_taken(report: Any) -> bool:
    return bool(
        getattr(report, "skipped", False)
        and any(name == _PROPERTY for name, _ in getattr(report, "user_properties", ()))
        and TAKEN in str(report.longrepr)
    )


def _folder(config: pytest.Config) -> Path | None:
    """The folder that the options say; `None` if pytest keeps no cache."""
    given = config.getoption("--rule-cache")
    if given is not None:
        return Path(config.invocation_params.dir, given)
    cache = getattr(config, "cache", None)
    return None if cache is None else Path(cache.mkdir("rule-tests"))


def read(file: Path) -> dict[str, str]:
    """The passes in a file, a test for each key, the oldest first; none if there is no such file, or it is damaged."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(test) for key, test in found.items()} if isinstance(found, dict) else {}


def write(file: Path, passes: Iterable[tuple[str, str]]) -> None:
    """Replace a file of passes in one step; a folder that cannot be written to keeps none."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as made:
            json.dump(dict(passes), made, indent=0)
        Path(made.name).replace(file)
