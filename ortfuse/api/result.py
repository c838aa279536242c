"""The result of optimising a model."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from ortfuse.errors import VerificationError
from ortfuse.options import Options
from ortfuse.pipeline.report import RunReport
from ortfuse.runtime.session_settings import SessionConfig, hand_on
from ortfuse.runtime.session_settings.config import settings_of
from ortfuse.serialization import Record, derived, entry

if TYPE_CHECKING:
    from ortfuse.runtime.bench import Latencies, Latency
    from ortfuse.verification import SiteCheck, Verdict
    from ortfuse.verification.bisection.bisect_slowdown import Slowdown
    from ortfuse.verification.explanation import Explanation, ForcedOutcome


@dataclass(frozen=True)
class Timings:
    """Seconds spent in each part of an optimisation, 0 for those that were not asked for.

    Attributes:
        load: Reading the model, and checking it.
        optimize: The pipeline, with the checks of its sites if those were asked for.
        verify: Running and comparing the original and the result.
        bench: Measuring.
        write: Writing the result.
    """

    load: float = 0.0
    optimize: float = 0.0
    verify: float = 0.0
    bench: float = 0.0
    write: float = 0.0


@dataclass(frozen=True)
class _FileBytes:
    before: int | None
    after: int | None


def _before_and_after(file_bytes: tuple[int | None, int | None]) -> _FileBytes:
    return _FileBytes(*file_bytes)


@dataclass(frozen=True)
class Result(Record):
    """An optimised model, with the report of what was done and what was checked and measured.

    Attributes:
        model: The model, of the same kind as the input (an `onnx_ir.Model` for a path).
        report: What each pass did, where rules were applied, and which choices were made by cost.
        options: What was asked for.
        verdict: How the result compares with the original, if it was verified as a whole.
        blame: If it is wrong: which pass broke it, in words.
        sites: The check of each change, if changes were verified, or else of each change by the user's own rules and passes;
            `None` if there was none to check.
        explanation: Which rule fused each site or came nearest, if that was asked for.
        forced: The outcome of each forced choice: the sites where it was followed, and the obstacles at the others.
        latencies: The latency after each pass, if that was asked for.
        slowdown: What makes the result slower than the original, if it is, and the model that is offered instead.
        session: The settings that are recommended for sessions of the result; they are also in its metadata.
        written: The file that the result was written to.
        session_file: The file beside it with the settings; `None` if there are none.
        file_bytes: The bytes of the file that was read and of the one that was written, each with its external data; `None` where
            there is none.
        timings: Seconds spent in each part.
        unchanged: Why the model was left as it is, if it was. What a graph cannot represent is then in `model` as it was
            handed in.
        original: The model as it was handed in: a path, or the object, which was not changed.
    """

    model: Any = field(repr=False, metadata=entry(omit=True))
    report: RunReport = field(repr=False, metadata=entry(inline=True))
    options: Options = field(default_factory=Options, metadata=entry(convert=Options.to_dict))
    verdict: Verdict | None = None
    blame: str = ""
    sites: Sequence[SiteCheck] | None = None
    explanation: Explanation | None = field(default=None, repr=False)
    forced: Sequence[ForcedOutcome] = ()
    latencies: Latencies | None = field(default=None, metadata=entry(omit=True))
    slowdown: Slowdown | None = None
    session: SessionConfig = field(default_factory=SessionConfig, metadata=entry(convert=settings_of))
    written: Path | None = None
    session_file: Path | None = None
    file_bytes: tuple[int | None, int | None] = field(default=(None, None), metadata=entry(convert=_before_and_after))
    timings: Timings = field(default_factory=Timings)
    unchanged: str = ""
    original: Any = field(default=None, repr=False, metadata=entry(omit=True))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'; '.join(self._findings())}>"

    @property
    @derived()
    def ok(self) -> bool:
        """Whether the result passed every check that was asked for."""
        return self.verdict is None or self.verdict.ok

    @property
    @derived(optional=True)
    def oldest_runtime(self) -> str | None:
        """The oldest release of ONNX Runtime that loads and executes the result, such as `1.23`; `None` if that is not known."""
        from ortfuse.api.effective_options import target_spec
        from ortfuse.io.convert_model_objects import enter
        from ortfuse.targets import oldest_release

        return None if self.unchanged else oldest_release(enter(self.model, copy=False)[0], target_spec(self.options))

    def save(self, path: str | os.PathLike[str], *, link: bool = False, external_data: bool = False) -> None:
        """Write the model to a file, as `ortfuse.save` does.

        Args:
            path: The file.
            link: Whether external data may be hard links.
            external_data: Whether weights go to a data file in any case.

        Raises:
            OutputError: It cannot be written; what was there before is unchanged.
        """
        from ortfuse.io.convert_model_objects import enter
        from ortfuse.io.copy_model import copy_model
        from ortfuse.io.load_and_save import save

        if self.unchanged and isinstance(self.model, str | os.PathLike | onnx.ModelProto) and not external_data:
            copy_model(self.model, path, hand_on)
            return
        save(enter(self.model, copy=False)[0], path, link=link, external_data=external_data)

    def summary(self) -> str:
        """The result in a few lines: nodes, fusions, checks, speed, remarks, and the file that was written."""
        if self.unchanged:
            return f"the model was left as it is: {self.unchanged}"
        lines = [self.report.summary()]
        if self.verdict is not None:
            lines.append(f"verified: {self.verdict.summary()}")
        if self.blame:
            lines.append(f"{self.blame}; nothing was written")
        if self.sites is not None:
            from ortfuse.verification.translation_validation import summary

            lines.append(f"checked at the sites: {summary(self.sites)}")
        if self.latencies is not None:
            lines += [speed for speed in [self._speed()] if speed]
        lines += [f"note: {note}" for note in (*self.report.notes, *self.report.failures)]
        lines += [f"session: {setting} ({setting.reason})" for setting in self.session]
        if self.written is not None:
            lines.append(f"written: {self.written}")
        return "\n".join(lines)

    def page(self, path: str | os.PathLike[str], name: str = "") -> None:
        """Write the page of `ortfuse optimize --report FILE.html`: what was done where, what it bought, what was left.

        It shows what stopped other fusions if `explain` was asked for.

        Args:
            path: The HTML file.
            name: What the model is called; by default its file name, or the name of its graph.

        Raises:
            OptionError: Jinja is not installed, or the model was left as it is, or the original is no longer there.
            OutputError: The file cannot be written.
        """
        # By name, as the public names of the package are imported: what people read stands above all results.
        importlib.import_module("ortfuse.report.result_page").write_result_page(self, path, name)

    def _findings(self) -> list[str]:
        if self.unchanged:
            return ["left as it is"]
        found = [self.report.headline()]
        if self.verdict is not None:
            found.append(self.verdict.headline())
        if self.latencies is not None:
            found += [speed for speed in [self._speed()] if speed]
        return [*found, *([f"written to {self.written}"] if self.written else [])]

    def _speed(self) -> str:
        rows = () if self.latencies is None else self.latencies.latency
        if len(rows) < 2:
            return ""
        return f"{rows[-1].speedup:.2f} times as fast as the original"

    @property
    @derived()
    def latency_sizes(self) -> str:
        """The sizes at which latencies were measured; empty if they were not."""
        return self.latencies.inputs if self.latencies else ""

    @property
    @derived()
    def latency(self) -> Sequence[Latency]:
        """The latencies of the original and the result."""
        return self.latencies.latency if self.latencies else ()


class WrongResultError(VerificationError):
    """The optimised model does not compute what the original computes; nothing was written.

    Attributes:
        result: The result with its verdict, and the pass to blame.
    """

    def __init__(self, result: Result) -> None:
        assert result.verdict is not None
        super().__init__(f"{result.verdict.summary()}; {result.blame}; nothing was written")
        self.result = result
