"""Human-readable reports on the console: tables of rewrites, rule tests and speedups."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortfuse.report.terminal.cost_sources import sources_of_costs
from ortfuse.report.terminal.long_names import Names
from ortfuse.report.terminal.model_growth import growth_remarks, size_line
from ortfuse.report.terminal.passes import passes_table

if TYPE_CHECKING:
    # Needed for type checking only: these modules are not loaded unless a command uses them.
    import onnx_ir as ir

    from ortfuse.api.result import Result
    from ortfuse.interop import Substitution
    from ortfuse.pipeline import RunReport
    from ortfuse.runtime.bench import Latencies
    from ortfuse.transforms import Choice
    from ortfuse.verification import SiteCheck, Verdict
    from ortfuse.verification.explanation import Explanation, Missed
    from ortfuse.verification.rule_tests import RuleTestReport

MOST_MISSES = 40
MOST_FAILURES = 3
LONGEST_MODEL = 40
LONGEST_REASON = 240


def show_result(console: Console, result: Result, *, offered: bool = True) -> None:
    """Print the complete result of `ortfuse optimize`; where none was written, it may be `offered` to be."""
    show_report(console, result.report, result.file_bytes)
    for line in (line for wanted in result.forced for line in wanted.lines()):
        console.print(line, markup=False, highlight=False)
    if result.verdict is not None:
        show_verdict(console, result.verdict)
    if result.blame:
        console.print(f"{result.blame}; nothing was written", style="bold red", markup=False, highlight=False)
    if result.sites is not None:
        show_sites(console, result.sites, own=result.options.verify != "sites")
    if result.latencies is not None:
        rows = result.latencies
        show_latencies(console, rows, f"Latency at {rows.sizes}, interleaved with the original")
    if result.slowdown is not None:
        console.print(result.slowdown.text(), style="bold red", markup=False, highlight=False)
    show_notes(console, [*growth_remarks(result.report), *result.report.notes, *result.report.failures])
    for setting in result.session:
        console.print(f"session: {setting} ({setting.reason})", markup=False, highlight=False)
    if result.written is not None or (result.ok and offered):
        show_written(console, result.written, "optimised model")
    if result.session_file is not None and len(result.session):
        console.print(f"written: {result.session_file}; ortfuse.session(...) applies it", markup=False, highlight=False)
    if result.explanation is not None:
        show_explanation(console, result.explanation)


def show_substitution(console: Console, done: Substitution) -> None:
    """Print the pair and its rule test, what was substituted where, and what stopped it elsewhere."""
    console.print(f"{done.rule.name}: {done.rule.formula}", markup=False, highlight=False)
    if done.proof is not None:
        show_rule_test(console, done.proof)
    show_result(console, done.result, offered=done.count > 0)
    if not done.count:
        console.print("substituted nowhere; nothing was written", style="bold red")


def show_latencies(console: Console, found: Latencies, title: str) -> None:
    """Print the measurements, and how far they can be trusted."""
    from ortfuse.runtime.bench import doubts, sessions_table, table

    console.print(table(found.rows, title))
    if found.sessions:
        console.print(sessions_table(found.sessions, "Sessions, each in a process of its own"))
    show_notes(console, [*found.notes, *doubts(found.rows)])


def show_written(console: Console, path: Path | None, what: str = "model") -> None:
    """The place of the result, or how to get it written."""
    if path is not None:
        console.print(f"written: {path}", markup=False, highlight=False)
    else:
        console.print(f"nothing was written; -o RESULT writes the {what}", highlight=False)


def show_notes(console: Console, notes: Iterable[str]) -> None:
    """Print the remarks of a run, one per line."""
    for note in notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False)


def show_report(console: Console, report: RunReport, file_bytes: tuple[int | None, int | None] = (None, None)) -> None:
    """Print the nodes and bytes before and after, the families with their sites, and the passes in order."""
    console.print(
        f"nodes: {report.before.nodes} -> {report.after.nodes}   engine: {report.seconds:.3f} s", highlight=False
    )
    console.print(size_line(report, file_bytes), markup=False, highlight=False)
    said = f"auto takes {report.chosen}" if report.chosen else f"passes: {report.pipeline}"
    console.print(said, markup=False, highlight=False)
    console.print(f"fused sites: {_counted(report.families()) or 'none'}", highlight=False)
    if improved := _counted(report.improved()):
        console.print(f"improved, which were one operator before: {improved}", highlight=False)
    made = passes_table(report)
    if made.row_count:
        console.print(made)
    show_choices(console, report.choices)


def _counted(families: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in families.items())


def show_choices(console: Console, choices: Iterable[Choice]) -> None:
    """Print the decisions made by cost, with the numbers."""
    choices = list(choices)
    title = "Chosen by cost: speedup over what stood there, at the nearest size that was measured"
    caption = sources_of_costs(choices)
    made = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for heading in ("rule", "makes", "speedup", "measured at", "sites", "choice"):
        made.add_column(heading, overflow="fold", justify="right" if heading in ("speedup", "sites") else "left")
    for choice in choices:
        known = choice.estimate
        made.add_row(
            Names(choice.rule),
            Names(choice.makes),
            f"{known.speedup:.2f}" if known else "",
            known.sizes if known else "forced",
            str(len(choice.sites)),
            choice.decision,
        )
    if made.row_count:
        console.print(made)


def show_verdict(console: Console, verdict: Verdict) -> None:
    """Print the verdict, the worst comparison of each output, and what was left out."""
    console.print(
        f"verified: {verdict.summary()}" if verdict.ok else f"{verdict.state.upper()}: {verdict.summary()}",
        style="green" if verdict.ok else "bold red",
        highlight=False,
    )
    for name, difference in verdict.excused.items():
        console.print(f"output '{name}': {difference.reason}", markup=False, highlight=False)
    if verdict.runtime is not None:
        console.print(f"warning: {verdict.runtime.text()}", style="yellow", markup=False, highlight=False)
    show_notes(console, verdict.notes)


def show_sites(console: Console, checks: Sequence[SiteCheck], *, own: bool = False) -> None:
    """Print the results of the checks at the sites: wrong rewrites, and those that could not be checked.

    Args:
        console: Where to.
        checks: The checks.
        own: Whether only changes of the user's own rules and passes were checked; the notes of the run say what was undone.
    """
    from ortfuse.verification.translation_validation import by_author, summary

    wrong = [check for check in checks if check.state == "undone"]
    said = f"your own rules and passes, each change on its own nodes: {by_author(checks)}" if own else summary(checks)
    console.print(
        f"{'checked' if own else 'verified'}: {said}", style="bold red" if wrong else "green", highlight=False
    )
    for check in () if own else wrong:
        console.print(f"undone: {check.text()}", style="red", markup=False, highlight=False)
    for check in (check for check in checks if check.state == "unchecked"):
        console.print(f"not checked: {check.text()}", style="yellow", markup=False, highlight=False)


def show_explanation(console: Console, found: Explanation) -> None:
    """Print the fused sites in a table, then the nearest misses, one paragraph each."""
    made = Table(title="Fused", title_justify="left")
    made.add_column("rule", no_wrap=True)
    for heading in ("site", "made", "replaces"):
        made.add_column(heading, overflow="fold")
    for site in found.fused:
        made.add_row(site.rule, Names(site.site), Names(", ".join(site.operators)), Names(_originals(site.nodes)))
    if found.fused:
        console.print(made)
    alike = _alike(found.missed)
    for misses in alike[:MOST_MISSES]:
        miss = misses[0]
        where = f"'{miss.site}' ({miss.root})"
        if len(misses) > 1:
            where = f"{len(misses)} sites, {where} and others"
        console.print(f"{miss.rule} at {where}: {_matched(miss)}", style="bold", markup=False, highlight=False)
        console.print(f"  stopped by: {_short(miss.refusal.reason)}", markup=False, highlight=False)
        console.print(f"  would match if {miss.refusal.remedy}", markup=False, highlight=False)
    if len(alike) > MOST_MISSES:
        console.print(f"and {sum(map(len, alike[MOST_MISSES:]))} more misses; --json has them all")
    for taken in found.taken:
        console.print(f"{taken.rule}: {taken.text()}", markup=False, highlight=False)
    reasons: dict[str, list[str]] = {}
    for rule, why in found.absent.items():
        reasons.setdefault(why, []).append(rule)
    for why, rules in reasons.items():
        console.print(f"{', '.join(rules)}: {why}", markup=False, highlight=False)
    if not (found.missed or found.absent or found.taken):
        console.print(
            "no other site comes near to a fusion"
            if found.fused
            else "no fusion has a site in this model, nor comes near to one"
        )


def _alike(found: Sequence[Missed]) -> list[list[Missed]]:
    """The misses, those of one rule with the same reason together."""
    groups: dict[tuple[str, str, str, int], list[Missed]] = {}
    for miss in found:
        key = (miss.rule, miss.refusal.reason, miss.refusal.remedy, miss.matched)
        groups.setdefault(key, []).append(miss)
    return list(groups.values())


def _matched(miss: Missed) -> str:
    """How much of a pattern matched."""
    if miss.step != "pattern":
        return f"all of the pattern matched, {_nodes(miss.matched)}"
    return f"{_nodes(miss.matched)} matched" + (f" of at least {miss.least}" if miss.matched < miss.least else "")


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _short(text: str) -> str:
    """A reason, with a long pattern cut short."""
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."


def _originals(names: Sequence[str]) -> str:
    """How many nodes a fused one replaces, with the name of the first."""
    more = ", ..." if len(names) > 1 else ""
    return f"{_nodes(len(names))}: {names[0]}{more}" if names else "none"


def show_rule_test(console: Console, report: RuleTestReport) -> None:
    """Print what was tried for one rule, the smallest model on which it fails, and the number of other failures."""
    verdict = "passed" if report.passed else "FAILED"
    console.print(
        f"{report.rule}: {verdict} on {report.instances} instances and {report.near_misses} near misses "
        f"({report.near_misses_fired} rewritten and right)"
        if report.passed
        else f"{report.rule}: {verdict} ({report.instances} instances, {report.near_misses} near misses tried)",
        style="green" if report.passed else "bold red",
        highlight=False,
    )
    failures = list(dict.fromkeys(report.failures))
    smallest = report.smallest
    shown = failures[:MOST_FAILURES] if smallest is None else [smallest[0]]
    for text in shown:
        console.print(f"  {text}", markup=False, highlight=False)
    if smallest is not None:
        console.print(Text(textwrap.indent(_as_text(smallest[1]), "    ")))
    if len(failures) > len(shown):
        console.print(f"  and {len(failures) - len(shown)} more failures, none on a smaller model; --json has them all")


def _as_text(model: ir.Model) -> str:
    """A model in ONNX's textual form."""
    import onnx
    import onnx_ir as ir

    lines = str(onnx.printer.to_text(ir.to_proto(model))).strip().splitlines()
    return "\n".join(lines if len(lines) <= LONGEST_MODEL else [*lines[:LONGEST_MODEL], "..."])
