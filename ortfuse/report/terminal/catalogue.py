"""Show passes, rules and pass lists, all of them in tables, or the description of one name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortfuse.report.terminal.long_names import Names

if TYPE_CHECKING:
    from ortfuse.pipeline import PassList
    from ortfuse.pipeline.descriptions import Described, OptionInfo, PassInfo, RuleInfo


def show_passes(console: Console, found: Described, lists: Collection[PassList]) -> None:
    """Print every pass that is no set of rules, every rule, and every pass list."""
    made = Table(title="Passes", title_justify="left")
    made.add_column("name")
    made.add_column("what it does")
    for one in found.passes:
        if one.kind != "rules":
            made.add_row(Names(one.name), Text(one.what if one.source == "built-in" else f"{one.what} ({one.source})"))
    if made.row_count:
        console.print(made)
    _show_rules(console, found.rules)
    if lists:
        show_lists(console, lists)


def show_named(console: Console, found: Described) -> None:
    """Print what a name stands for: a pass with its options and an example, a rule, the rules of a family, or a pass list."""
    alone = len(found.rules) == 1
    for one in () if alone else found.passes:
        _show_pass(console, one)
    if alone:
        _show_rule(console, found.rules[0], found.passes)
    else:
        _show_rules(console, found.rules)
    for entry in found.lists:
        _say(console, f"{entry.name}, a pass list: {entry.description} {entry.reason}".strip())
        _say(console, f"  passes: {entry.passes}")
        _say(console, f"  auto takes it for models {entry.when}" if entry.when else "  used only by name")
        _say(console, f"  example: ortfuse optimize MODEL -o RESULT --passes {entry.name}")


def _show_pass(console: Console, one: PassInfo) -> None:
    kind = {"pass": "a pass", "rules": "a pass of rules", "word": "a word of pipelines"}[one.kind]
    origin = (
        "" if one.source == "built-in" else {"user": ", your own", "package": ", of an installed package"}[one.source]
    )
    _say(console, f"{one.name}, {kind}{origin}: {one.what}")
    for option in one.options:
        _say(console, f"  {_option(option)}")
    if not one.options:
        _say(console, "  it has no options")
    _say(console, f"  example: ortfuse optimize MODEL -o RESULT --passes '{one.example}'")


def _option(option: OptionInfo) -> str:
    default = "" if option.default in (None, "") else f", by default {str(option.default).lower()}"
    what = f": {option.what}" if option.what else ""
    return f"{option.name} ({option.type}{default}){what}"


def _show_rule(console: Console, rule: RuleInfo, passes: Sequence[PassInfo]) -> None:
    _say(console, f"{rule.name}, a rule of the family {rule.family}, applied by {rule.pass_name}: {rule.formula}")
    _say(console, f"  exactness: {rule.exactness}")
    _say(console, f"  makes: {', '.join(rule.makes) or 'one of its inputs'}")
    _say(console, f"  source: {rule.source}")
    _say(console, f"  example: ortfuse explain MODEL --rule {rule.name}")
    for one in passes:
        left_out = f'canonicalize, {one.name}{{without="{rule.name}"}}, dce'
        _say(console, f"  without it: ortfuse optimize MODEL -o RESULT --passes '{left_out}'")


def _show_rules(console: Console, rules: Sequence[RuleInfo]) -> None:
    if not rules:
        return
    made = Table(title="Rules", title_justify="left")
    made.add_column("rule", no_wrap=True)
    made.add_column("pass", overflow="fold")
    made.add_column("exactness", no_wrap=True)
    for heading in ("makes", "formula"):
        made.add_column(heading, overflow="fold")
    for rule in rules:
        makes = ", ".join(rule.makes) or "its input"
        made.add_row(rule.name, Names(rule.pass_name), rule.exactness, Names(makes), Text(rule.formula))
    console.print(made)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)


def show_lists(console: Console, lists: Collection[PassList]) -> None:
    """Print the pass lists, marking those equal to an earlier one, and which of them `auto` selects."""
    from ortfuse.pipeline.passlists import FALLBACK

    named = Table(title="Pass lists", title_justify="left")
    for heading in ("name", "passes", "auto takes it for models", "description"):
        named.add_column(heading, overflow="fold")
    suited = [entry.name for entry in lists if entry.when is not None]
    named.add_row(
        "auto", f"those of the list that suits the model: {', '.join(suited)}, else {FALLBACK}", "", "The default."
    )
    first: dict[str, str] = {}
    for entry in lists:
        passes = str(entry.pipeline)
        known = first.setdefault(passes, entry.name)
        when = (
            str(entry.when) if entry.when is not None else "that no other list suits" if entry.name == FALLBACK else "-"
        )
        text = f"{entry.description} {entry.reason}".strip()
        named.add_row(entry.name, passes if known == entry.name else f"the same as {known}", when, text)
    console.print(named)
