"""Makes the pages of the site that the code itself tells: the catalogue of rules, families, passes, and what these buy."""

from __future__ import annotations

import functools
import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify
from mkdocs.structure.files import File, Files

from ortfuse.naming import name_today
from ortfuse.pipeline import lists_with, load_catalogue
from ortfuse.pipeline import passes as registered
from ortfuse.rewrite import Rule
from ortfuse.targets import default_spec, shipped_tables

FAMILIES = Path(__file__).parent / "families.toml"
SUMMARIES = Path(__file__).parents[1] / "benchmarks" / "summaries"
POLICY = Path(__file__).parents[1] / "SECURITY.md"


CATALOGUE = "catalogue.md"
STYLE = "whole.css"

SHORT = r"<code>([^<\n]{1,28})</code>"
"""Code that is not torn apart: an option that ends a line behind its hyphens is read as another."""


def on_config(config: Any) -> Any:
    """Put the pages of the catalogue behind its index in the navigation."""
    pages = [{name: _page(name)} for name in load_catalogue().passes()]
    config.nav = _with_pages(config.nav, [{"Index": CATALOGUE}, *pages])
    config.extra_css.append(STYLE)
    return config


def on_page_content(text: str, page: Any, config: Any, files: Files) -> str:
    """Keep short pieces of code in one line."""
    return re.sub(SHORT, r'<code class="whole">\1</code>', text)


def _with_pages(nav: Any, pages: Any) -> Any:
    """A navigation with the pages in the place of the index."""
    if isinstance(nav, list):
        return [_with_pages(entry, pages) for entry in nav]
    if isinstance(nav, dict):
        return {title: pages if entry == CATALOGUE else _with_pages(entry, pages) for title, entry in nav.items()}
    return nav


def on_files(files: Files, config: Any) -> Files:
    """Add what is made here."""
    for path, content in made().items():
        files.append(File.generated(config, path, content=content))
    return files


def made() -> dict[str, str]:
    """The text of each file that is made here, by its path."""
    catalogue = {_page(name): _of_a_pass(name, group) for name, group in load_catalogue().passes().items()}
    left_out = _left_out(
        *(json.loads((SUMMARIES / f"{name}.json").read_text()) for name in ("passes.full", "passes", "rules"))
    )
    pages = {
        CATALOGUE: _catalogue(),
        **catalogue,
        "families.md": _families(),
        "passes.md": _passes(),
        "left-out.md": left_out,
        "security.md": POLICY.read_text().splitlines(),
    }
    return {
        STYLE: ".md-typeset code.whole{white-space:nowrap}",
        **{path: "\n".join(lines) for path, lines in pages.items()},
    }


def _catalogue() -> Iterator[str]:
    catalogue = load_catalogue()
    rules = list(catalogue.rules())
    yield "# Catalogue of rules\n"
    yield (
        f"All {len(rules)} rules, made from the rules. *Exactness* says what a rule does to numbers: `exact` (the same "
        "bits), `rounding` (the same mathematics), `approximate` (other mathematics, only with `--approximate`), `lossy` (lower "
        "precision, only in `ortfuse quantize`). Each rule is proved by the tests on instances of the pattern at the shapes "
        "that stand with it, and on near misses on which it must stay silent or be right. Speedups are those of the tables of "
        "costs that come with ortfuse:\n"
    )
    yield from (f"- {table.source}" for table in shipped_tables(default_spec()))
    yield ""
    yield "## By pass\n\n| pass | rules | families |\n|---|---:|---|"
    for name, group in catalogue.passes().items():
        families = ", ".join(_by_family(group))
        yield f'| <span id="{_anchor(name)}"></span>[{name}]({_page(name)}) | {len(group)} | {families} |'
    yield "\n## By family\n\nThe first word of a rule's name is its family, as reports count them.\n"
    pages = _pages()
    for family, group in sorted(_by_family(rules).items()):
        named = (
            f'<span id="{_anchor(rule.name)}"></span>[{rule.name.partition(".")[2]}]({pages[rule.name]}#{_anchor(rule.name)})'
            for rule in sorted(group, key=lambda rule: rule.name)
        )
        yield f"- **{family}**: {', '.join(named)}"


def _of_a_pass(name: str, group: Sequence[Rule]) -> Iterator[str]:
    """The page of the rules of a pass, family by family."""
    count = "1 rule" if len(group) == 1 else f"{len(group)} rules"
    yield f"# {name}\n\nThe {count} of the pass `{name}`; what the words mean stands in the [index](../{CATALOGUE}).\n"
    for family, rules in _by_family(group).items():
        yield f"## {family}\n"
        for rule in rules:
            yield from _rule(rule)


def _by_family(rules: Iterable[Rule]) -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        found.setdefault(rule.family, []).append(rule)
    return found


def _page(name: str) -> str:
    """The page of the rules of a pass."""
    return f"catalogue/{name}.md"


def _pages() -> dict[str, str]:
    """The page of each rule."""
    return {rule.name: _page(name) for name, group in load_catalogue().passes().items() for rule in group}


def _anchor(name: str) -> str:
    """Return the name of a rule's heading in links."""
    return slugify(name, "-")


def _linked(name: str, pages: Mapping[str, str]) -> str:
    """The name of a rule, or of something else, as code that leads to the rule; a former name as that of today."""
    name = name_today(name, ("rules",), pages, tell=False)
    return f"[`{name}`]({pages[name]}#{_anchor(name)})" if name in pages else f"`{name}`"


def _rule(rule: Rule) -> Iterator[str]:
    yield f"### {rule.name}\n"
    yield f"```text\n{rule.formula}\n```\n"
    makes = ", ".join(f"`{name}`" for name in rule.targets) or "its input"
    yield f"- {rule.exactness.value}; makes {makes}"
    yield f"- source: {rule.source}"
    for guard in rule.guards:
        said = (inspect.getdoc(guard) or "").partition("\n")[0]
        if said:
            yield f"- only where: {said[0].lower()}{said[1:]}"
    shapes = rule.test.shapes if isinstance(rule.test.shapes, (list, tuple)) else [rule.test.shapes]
    proved = "; ".join(", ".join(f"{key}: [{value}]" for key, value in one.items()) for one in shapes if one)
    if proved:
        yield f"- proved at {_plain(proved)}, in {', '.join(rule.test.dtypes)}"
    for condition, why in rule.test.assumes.items():
        yield f"- assumes: {_plain(why)} ({_plain(condition)})"
    yield f"- {_evidence(rule)}"
    for table in shipped_tables(default_spec()):
        numbers = sorted(one.speedup for one in table.speedups.get(rule.name, ()))
        if numbers:
            releases = "" if table.releases is None else f", releases {' to '.join(table.releases)}"
            where = f"{table.processor} {table.formats}".strip() + releases
            yield f"- measured {numbers[0]:.2f} to {numbers[-1]:.2f} times as fast, at {len(numbers)} sizes ({where})"
    yield ""


@functools.cache
def _evidence_by_rule() -> Mapping[str, Mapping[str, Any]]:
    """The evidence for each rule, by its name of today, from the summary of `benchmarks.rules`."""
    (run,) = json.loads((SUMMARIES / "rules.json").read_text())["runs"]
    found = run["result"]
    rows = {
        **found["rules"],
        **{name: {"kind": kind, "model": one} for kind in ("idle", "untried") for name, one in found[kind].items()},
        **{name: {"kind": "never"} for name in found["never"]},
    }
    return {name_today(name, ("rules",), tell=False): row for name, row in rows.items()}


def _evidence(rule: Rule) -> str:
    """The model in which a rule saves most, with the saving; or that there is none."""
    row = _evidence_by_rule().get(rule.name)
    if rule.because is not None:
        return f"evidence: a known bug, the runtime {rule.because.value}"
    if row is None:
        return "evidence: none is looked for, as no pass list applies it unasked"
    model = f"`{row.get('model', '')}`"
    if row["kind"] in ("saves", "costs") and "executed" in row:
        numbers = (
            f"{_times(row['executed'])} times the operators and {_times(row['microseconds'])} times the time without it"
        )
        return f"evidence: {model}, with {numbers}"
    return {
        "saves": f"evidence: {model}, of which there is no result without it",
        "measured": f"evidence: fires in {model}, and is faster as measured",
        "needed": f"evidence: {model}, where without it {', '.join(f'`{name}`' for name in row.get('lost', ()))} fires less",
        "idle": f"evidence: none; it fires in {model}, where nothing changes without it",
        "untried": f"evidence: fires in {model}, and was not left out yet",
        "never": "evidence: none; it fires in no model that was tried",
    }[row["kind"]]


def _passes() -> Iterator[str]:
    yield "# Passes and pass lists\n\n## Passes\n\n| pass | what it does |\n|---|---|"
    for name, kind in registered().items():
        yield f"| `{name}` | {_plain((inspect.getdoc(kind) or '').partition(chr(10))[0])} |"
    yield (
        "\n## Lists\n\nA list is a TOML file of a few lines. `auto` takes, of those that suit the content of a model, the one "
        "that demands most of it.\n"
    )
    for entry in lists_with([]).values():
        yield f"### {entry.name}\n\n{_plain(entry.description)} {_plain(entry.reason)}\n\n```text\n{entry.pipeline}\n```\n"


def _families() -> Iterator[str]:
    """Return the families of the table, each with its rules, passes and open points."""
    pages = _pages()
    rules = list(pages)
    yield "# Families\n"
    yield (
        "What exporters write that there is a faster or plainer form of, with the rules ([catalogue](catalogue.md)) and passes "
        "([passes](passes.md)) that find it and the tests that show it on whole graphs; each rule is proved besides.\n"
    )
    families = tomllib.loads(FAMILIES.read_text())["family"]
    for group in dict.fromkeys(family["group"] for family in families):
        yield f"## {group}\n"
        for family in (one for one in families if one["group"] == group):
            found = [name for name in rules if any(fnmatch(name, wanted) for wanted in family.get("rules", ()))]
            does = ", ".join(_linked(name, pages) for name in (*found, *family.get("passes", ())))
            tests = ", ".join(f"`{path.removeprefix('tests/')}`" for path in family.get("tests", ()))
            still = f" *Open:* {family['open']}" if "open" in family else ""
            yield f"### {family['name']}\n\n{_plain(family['what'] + still)}\n"
            yield f"- rules and passes: {does or 'none'}"
            yield f"- tests: {tests or 'none'}\n"
    named = [wanted for family in families for wanted in family.get("rules", ())]
    further = [_linked(name, pages) for name in rules if not any(fnmatch(name, wanted) for wanted in named)]
    if further:
        yield f"## Further rules\n\nRules in no family above: {', '.join(further)}.\n"


def _left_out(of_full: Mapping[str, Any], of_small: Mapping[str, Any], of_rules: Mapping[str, Any]) -> Iterator[str]:
    """Savings by each pass on exports of full size and on small models, and by each rule, from the summaries."""
    (full,), (small,), (found,) = ([run["result"] for run in one["runs"]] for one in (of_full, of_small, of_rules))
    yield "# Savings by pass\n"
    yield (
        f"Each pass of each family's list, left out alone on {full['models']} exports of full size and on {small['models']} "
        f"small models (`{of_small['command']}`), and each rule (`{of_rules['command']}`). "
        "Operators are those that the runtime executes in a run, after its own optimisations. The time "
        "is estimated from them and from their work, and so the same in every run; latency is measured. "
        "A number is the cost without the pass over the cost with it: 1.05 is 5 % more, less than 1 is cheaper without it.\n"
    )
    yield "## Exports of full size\n"
    yield from _lists(full)
    yield "## Small models\n"
    yield from _lists(small)
    yield from _rules_left_out(found)


def _rules_left_out(found: Mapping[str, Any]) -> Iterator[str]:
    """Savings by each rule in the model in which it saves most."""
    pages = _pages()
    models = ", ".join(f"{number} {kind}" for kind, number in found["models"].items())
    yield (
        f"## Rules\n\nEach rule was left out of models in which it fires (of these: {models}), until one showed a saving.\n"
    )
    yield "| rule | fires in | sites | operators | time | in |\n|---|---|---|---|---|---|"
    for kind in ("saves", "costs"):
        rows = ((name, row) for name, row in found["rules"].items() if row["kind"] == kind)
        for name, row in sorted(rows, key=lambda item: -item[1].get("executed", float("inf"))):
            numbers = " | ".join(_times(row.get(price)) for price in ("executed", "microseconds"))
            yield f"| {_linked(name, pages)} | {row['models']} | {row['sites']} | {numbers} | {row['model']} |"
    for kind, said in (("measured", "Faster by the shipped tables of costs"), ("needed", "Needed by other rules")):
        names = (name for name, row in found["rules"].items() if row["kind"] == kind)
        yield f"\n{said}: {', '.join(_linked(name, pages) for name in names)}."
    yield f"\nNot left out yet: {', '.join(_linked(name, pages) for name in found['untried'])}."
    yield f"\nApplied without any saving: {', '.join(_linked(name, pages) for name in found['idle'])}."
    yield f"\nApplied to none of these models: {', '.join(_linked(name, pages) for name in found['never'])}.\n"
    yield "## Passes\n\nThe models in which each pass changes something; where it was left out, the largest saving.\n"
    yield "| pass | changes something in | changes | operators | time | in |\n|---|---|---|---|---|---|"
    for name, row in sorted(found.get("passes", {}).items(), key=lambda item: -item[1]["models"]):
        numbers = " | ".join(_times(row.get(price)) for price in ("executed", "microseconds"))
        today = name_today(name, ("passes",), tell=False)
        yield f"| `{today}` | {row['models']} models | {row['sites']} | {numbers} | {row['model'] if 'executed' in row else ''} |"


def _lists(found: Mapping[str, Any]) -> Iterator[str]:
    """Savings by each pass of each family's list."""
    prices = {"executed": "operators", "microseconds": "time", "latency": "latency"}
    costs = [cost for entry in found["lists"].values() for cost in entry["passes"].values()]
    prices = {price: head for price, head in prices.items() if any(price in cost for cost in costs)}
    for name, entry in found["lists"].items():
        yield f"### {name_today(name, ('pass_lists',), tell=False)}\n"
        yield (
            f"{entry['models']} models; all passes together: {entry['executed']:.2f} times fewer operators, "
            f"{entry['microseconds']:.2f} times less time.\n"
        )
        yield f"| pass | models | {' | '.join(prices.values())} |\n|---|---|{'---|' * len(prices)}"
        for one, cost in sorted(entry["passes"].items(), key=lambda item: -item[1].get("executed", float("inf"))):
            numbers = " | ".join(_times(cost.get(price)) for price in prices)
            needed = " (no result without it)" if cost.get("needed") else ""
            yield f"| `{name_today(one, ('passes',), tell=False)}`{needed} | {cost['models']} | {numbers} |"
        yield f"\n{entry['idle']} other passes of the list change nothing there.\n"


def _times(number: float | None) -> str:
    return "" if number is None else f"{number:.3f}"


def _plain(text: object) -> str:
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
