"""The document of `ortfuse passes`: all passes, rules and pass lists in tables, or the description of one name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from ortfuse.report.document import Block, Document, Item, Items, Rows

if TYPE_CHECKING:
    from ortfuse.pipeline import PassList
    from ortfuse.pipeline.descriptions import Described, ListInfo, OptionInfo, PassInfo, RuleInfo

_KINDS = {"pass": "a pass", "rules": "a pass of rules", "word": "a word of pipelines"}
_ORIGINS = {"built-in": "", "user": ", your own", "package": ", of an installed package"}


def catalogue_document(found: Described, lists: Collection[PassList]) -> Document:
    """Show every pass that is no set of rules, every rule, and the pass lists."""
    passes = [
        (one.name, one.description if one.source == "built-in" else f"{one.description} ({one.source})")
        for one in found.passes
        if one.kind != "rules"
    ]
    blocks: list[Block] = [Rows("Passes", ("name", "what it does"), passes), _rules(found.rules)]
    if lists:
        blocks.append(list_rows(lists))
    counts = f"{len(passes)} passes, {len(found.rules)} rules and {len(lists)} pass lists"
    return Document("Passes, rules and pass lists", f"{counts}.", blocks)


def name_document(name: str, found: Described) -> Document:
    """Show what a name stands for: a pass with its options and an example, a rule, the rules of a family, or a pass list."""
    is_rule = len(found.rules) == 1
    blocks = [
        Items("Passes", [] if is_rule else [_pass(one) for one in found.passes]),
        Items("Rule", [_rule(found.rules[0], found.passes)]) if is_rule else _rules(found.rules),
        Items("Pass lists", [_list(one) for one in found.lists]),
    ]
    said = next((item.name for block in blocks if isinstance(block, Items) for item in block.items), "")
    return Document(name, said or f"A family of {len(found.rules)} rules.", blocks)


def _pass(one: PassInfo) -> Item:
    options = [_option(option) for option in one.options] or ["it has no options"]
    exactness = [f"exactness: {one.exactness}"] if one.exactness else []
    example = f"example: ortfuse optimize MODEL -o RESULT --passes '{one.example}'"
    return Item(
        f"{one.name}, {_KINDS[one.kind]}{_ORIGINS[one.source]}: {one.description}", [*exactness, *options, example]
    )


def _option(option: OptionInfo) -> str:
    default = "" if option.default in (None, "") else f", by default {str(option.default).lower()}"
    what = f": {option.description}" if option.description else ""
    return f"{option.name} ({option.type}{default}){what}"


def _rule(rule: RuleInfo, passes: Sequence[PassInfo]) -> Item:
    lines = [
        f"exactness: {rule.exactness}",
        f"makes: {', '.join(rule.produces) or 'one of its inputs'}",
        f"source: {rule.source}",
        f"example: ortfuse explain MODEL --rule {rule.name}",
    ]
    for one in passes:
        left_out = f'canonicalize, {one.name}{{without="{rule.name}"}}, dce'
        lines.append(f"without it: ortfuse optimize MODEL -o RESULT --passes '{left_out}'")
    return Item(f"{rule.name}, a rule of the family {rule.family}, applied by {rule.pass_name}: {rule.formula}", lines)


def _list(one: ListInfo) -> Item:
    lines = [
        f"passes: {one.passes}",
        f"auto takes it for models {one.condition}" if one.condition else "used only by name",
        f"example: ortfuse optimize MODEL -o RESULT --passes {one.name}",
    ]
    return Item(f"{one.name}, a pass list: {one.description} {one.reason}".strip(), lines)


def _rules(rules: Sequence[RuleInfo]) -> Rows:
    cells = [
        (one.name, one.pass_name, one.exactness, ", ".join(one.produces) or "its input", one.formula) for one in rules
    ]
    headings = ("rule", "pass", "exactness", "makes", "formula")
    return Rows("Rules", headings, cells, whole=frozenset({0, 2}), spare=("makes", "exactness", "pass"))


def list_rows(lists: Collection[PassList]) -> Rows:
    """The pass lists, with those marked that equal an earlier one, and which of them `auto` selects."""
    return Rows("Pass lists", ("name", "passes", "auto takes it for models", "description"), list(_lists(lists)))


def _lists(lists: Collection[PassList]) -> Iterator[tuple[str, ...]]:
    from ortfuse.pipeline.pass_lists import FALLBACK

    suited = ", ".join(entry.name for entry in lists if entry.when is not None)
    yield "auto", f"those of the list that suits the model: {suited}, else {FALLBACK}", "", "The default."
    first: dict[str, str] = {}
    for entry in lists:
        passes = str(entry.pipeline)
        known = first.setdefault(passes, entry.name)
        when = "that no other list suits" if entry.name == FALLBACK else "-"
        yield (
            entry.name, passes if known == entry.name else f"the same as {known}",
            when if entry.when is None else str(entry.when), f"{entry.description} {entry.reason}".strip(),
        )  # fmt: skip
