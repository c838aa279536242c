"""Class `Expectation`: the expected result of optimising one model, and its differences from another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ortfuse.naming import number_by_name

if TYPE_CHECKING:
    from pathlib import Path

    from ortfuse.api.result import Result
    from ortfuse.options import Options

COUNTS = ("families", "improved", "executed")


@dataclass(frozen=True)
class Expectation:
    """The expected result of optimising a model.

    Attributes:
        families: The number of fused sites, by family.
        improved: The number of sites that were one operator before and got a better one, by family.
        executed: How often the runtime executes each operator in a run of the result.
        verdict: How the result compares with the original, such as `"equal"`; of a model that fails, how (`"refused"`).
        versions: What this was found with; it is not compared.
        reason: Why it failed; it is not stored.
    """

    families: Mapping[str, int] = field(default_factory=dict)
    improved: Mapping[str, int] = field(default_factory=dict)
    executed: Mapping[str, int] = field(default_factory=dict)
    verdict: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    @classmethod
    def of(cls, model: Path, options: Options) -> Expectation:
        """Optimise and verify a model, and run the result."""
        from ortfuse.api.optimize import optimize
        from ortfuse.api.result import WrongResultError
        from ortfuse.errors import CrashError, OrtfuseError

        found = cls(versions=_versions())
        try:
            result = optimize(
                model,
                options.with_(verify="whole", output=None, bench=False, link=False, external_data=False, fastest=False),
            )
            return _of_result(found, result)
        except WrongResultError as error:
            return replace(_of_report(found, error.result), verdict="wrong", reason=str(error))
        except CrashError as error:
            return replace(found, verdict="crashed", reason=str(error))
        except (OrtfuseError, OSError) as error:
            return replace(found, verdict="refused", reason=str(error))

    @classmethod
    def read(cls, path: Path) -> Expectation | None:
        """The expectation on file; `None` if there is none.

        Raises:
            ValueError: The file is damaged; the message says what to do.
        """
        if not path.is_file():
            return None
        try:
            data: Any = json.loads(path.read_text(encoding="utf-8"))
            known = {name: data[name] for name in (*COUNTS, "verdict", "versions")}
            known |= {name: number_by_name(known[name], "families") for name in ("families", "improved")}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            text = f"{path} is no expectation ({type(error).__name__}: {error}); store it anew with --ortfuse-refresh"
            raise ValueError(text) from None
        return cls(**known)

    def write(self, path: Path) -> None:
        """Make this the expectation on file."""
        data = {name: value for name, value in asdict(self).items() if name != "reason"}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    @property
    def failed(self) -> bool:
        """Whether there is no result that computes the same."""
        return self.verdict in ("wrong", "refused", "crashed")

    def differences(self, before: Expectation) -> Iterator[str]:
        """The differences from `before`, a line for each family and operator."""
        for part in COUNTS:
            was, now = getattr(before, part), getattr(self, part)
            for name in sorted({*was, *now}):
                if was.get(name, 0) != now.get(name, 0):
                    yield f"{part}: {name} {was.get(name, 0)} -> {now.get(name, 0)}"
        if self.verdict != before.verdict:
            yield f"verdict: {before.verdict} -> {self.verdict}" + (f" ({self.reason})" if self.reason else "")

    def other_versions(self, before: Expectation) -> list[str]:
        """The versions that `before` was found with, where they are not those of now."""
        return [
            f"stored with {name} {was}, and this is {self.versions[name]}"
            for name, was in before.versions.items()
            if name in self.versions and self.versions[name] != was
        ]


def _of_report(found: Expectation, result: Result) -> Expectation:
    return replace(
        found, families=_sorted(result.report.families()), improved=_sorted(result.report.improved())
    )  # fmt: skip


def _of_result(found: Expectation, result: Result) -> Expectation:
    from ortfuse.api.assess_optimization import inputs_to_measure
    from ortfuse.api.fallback import runnable
    from ortfuse.runtime.bench import executed_ops

    if result.unchanged or result.verdict is None:
        return replace(found, verdict="left as it is")
    model = runnable(result.model)
    executed = executed_ops(model, inputs_to_measure(result.options, model)[1])
    return replace(_of_report(found, result), executed=_sorted(executed), verdict=result.verdict.state)


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def _versions() -> dict[str, str]:
    from ortfuse.io.installed_runtime import installed_version
    from ortfuse.version import __version__

    return {"ortfuse": __version__, **{name: installed_version(name) for name in ("onnx", "onnxruntime")}}
