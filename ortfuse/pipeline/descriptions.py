"""Descriptions of passes, rules and pass lists: what they do, their options, and an example of each."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ortfuse.errors import PipelineError
from ortfuse.naming import name_today
from ortfuse.pipeline import registry
from ortfuse.pipeline.built_in_passes import BUILT_IN
from ortfuse.pipeline.pass_lists import Lists, PassList
from ortfuse.pipeline.rule_catalogue import Catalogue
from ortfuse.pipeline.steps import CANONICALIZE, MAX_ROUNDS
from ortfuse.rewrite import Exactness, Rule
from ortfuse.serialization import Record, entry
from ortfuse.transforms.onnx_ir_adapter import ForeignPass

Kind = Literal["pass", "rules", "word"]

CANONICAL_FORM = (
    "The canonical form: its rules with inline_functions, lift_constants, fold, inline_branches, licm, "
    "eliminate_sequences, eliminate_unbind_stack, recomputed_lengths_to_conv_dims, drop_length_clamps, "
    "sink_transpose_below_split, simplify_data_movement of lists of indices, cse and dce, to a fixed point."
)
_WITHOUT = "Rules that are left out, separated by blanks."
_ALWAYS = "Rules that are applied whatever the cost, separated by blanks."
_GROWTH = "Bytes that folding may add."


@dataclass(frozen=True)
class OptionInfo:
    """An option of a pass.

    Attributes:
        name: Its name.
        type: `bool`, `int`, `float` or `str`.
        default: Its default; `None` where there is none, and the pass decides.
        description: What it says.
    """

    name: str
    type: str
    default: bool | int | float | str | None
    description: str


@dataclass(frozen=True)
class PassInfo:
    """A pass.

    Attributes:
        name: Its name in a pipeline.
        kind: `pass` for an algorithm, `rules` for a set of rules, `word` for what means something else in a pipeline.
        description: What it does.
        source: `built-in`, `package` for rules of installed packages, `user` for rules and registered passes of yours.
        options: Its options.
        rules: The names of its rules.
        example: A pipeline with it.
        exactness: `exact` if its results have the same bits, else the least exact that its changes may be; empty for a word.
    """

    name: str
    kind: Kind
    description: str
    source: str
    options: Sequence[OptionInfo]
    rules: Sequence[str]
    example: str
    exactness: str = field(default="", metadata=entry(optional=True))


@dataclass(frozen=True)
class RuleInfo:
    """A rule.

    Attributes:
        name: Its name.
        family: Its family, by which sites are counted and forced.
        pass_name: The pass that applies it.
        formula: What it replaces by what.
        exactness: `exact`, `rounding`, `approximate` (only with `--approximate`) or `lossy`.
        produces: The operators that it makes; none if it leaves one of its inputs.
        source: Where the mathematics come from.
    """

    name: str
    family: str
    pass_name: str
    formula: str
    exactness: str
    produces: Sequence[str]
    source: str


@dataclass(frozen=True)
class ListInfo:
    """A pass list.

    Attributes:
        name: Its name.
        description: What it is for.
        reason: Why it has these passes.
        passes: Its pipeline.
        condition: The models that `auto` takes it for, in words; empty if it is used only by name.
    """

    name: str
    description: str
    reason: str
    passes: str
    condition: str


@dataclass(frozen=True)
class Described(Record):
    """Passes, rules and pass lists."""

    passes: Sequence[PassInfo]
    rules: Sequence[RuleInfo]
    lists: Sequence[ListInfo]

    def of(self, name: str = "", family: str = "") -> Described:
        """Those of a name, or of a family of rules: with the rules of a pass, and with the pass of rules.

        Raises:
            PipelineError: There is none.
        """
        if not name and not family:
            return self
        known = {one.name for one in self.passes} | {one.name for one in self.lists}
        known |= {called for rule in self.rules for called in _called(rule)}
        name = name_today(name, ("passes", "rules", "families", "pass_lists"), known)
        family = name_today(family, ("families",), {rule.family for rule in self.rules})
        rules = [rule for rule in self.rules if family in ("", rule.family) and name in ("", *_called(rule))]
        passes = [one for one in self.passes if name == one.name]
        if not passes and len(rules) == 1:
            passes = [one for one in self.passes if one.name == rules[0].pass_name]
        lists = [one for one in self.lists if name == one.name and not family]
        if not (rules or lists or (passes and not family)):
            raise PipelineError(self._unknown(name, family))
        return Described(passes, rules, lists)

    def _unknown(self, name: str, family: str) -> str:
        families = dict.fromkeys(rule.family for rule in self.rules)
        known = [
            *(one.name for one in self.passes), *(one.name for one in self.rules), *(one.name for one in self.lists), *families,
        ]  # fmt: skip
        wanted, there = (family, [*families]) if family and family not in families else (name or family, known)
        close = difflib.get_close_matches(wanted, there, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "; `ortfuse passes` lists all"
        what = "family of rules" if there is not known else "pass, rule, family or pass list"
        return f"there is no {what} {wanted!r}{hint}"


def _called(rule: RuleInfo) -> tuple[str, ...]:
    """The names that a rule is found by."""
    return rule.name, rule.pass_name, rule.family


def described(catalogue: Catalogue, lists: Lists) -> Described:
    """Describe registered passes, the passes of the catalogue, its rules, and pass lists."""
    sources = {rule.name: file.source for file in catalogue.files for rule in file.rules}
    rules = [_rule(rule, pass_name) for pass_name, members in catalogue.passes().items() for rule in members]
    passes = [*_registered(), *_words(), *_of_rules(catalogue, sources)]
    return Described(passes, rules, [_list(one) for one in lists.values()])


def _registered() -> Iterator[PassInfo]:
    for name, kind in registry.passes().items():
        built_in = name in BUILT_IN
        options = [] if isinstance(kind, ForeignPass) else list(_options(kind))
        what = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
        example = f"{CANONICALIZE}, {name}{_shown(options)}, dce"
        exactness = BUILT_IN[name].exactness if built_in else getattr(kind, "exactness", Exactness.ROUNDING)
        yield PassInfo(name, "pass", what, "built-in" if built_in else "user", options, (), example, exactness.value)


def _options(kind: type[Any]) -> Iterator[OptionInfo]:
    types = registry.option_types(kind)  # type: ignore[arg-type]
    text = inspect.getdoc(kind) or ""
    for one in dataclasses.fields(kind):
        default = None if one.default is dataclasses.MISSING else one.default
        yield OptionInfo(one.name, getattr(types[one.name], "__name__", "str"), default, _said(text, one.name))


def _said(text: str, name: str) -> str:
    """The description of an option in a docstring: among its attributes, or in a sentence that begins with its name."""
    attribute = re.search(rf"^ {{4}}{name}: (.*(?:\n {{8,}}.*)*)", text, re.MULTILINE)
    sentence = re.search(rf"`{name}`:? (?:is )?([^.]*\.)", text)
    found = attribute or sentence
    return "" if found is None else " ".join(found[1].split())


def _shown(options: Sequence[OptionInfo]) -> str:
    """Options as an example has them: the first, with a value that is not its default."""
    if not options:
        return ""
    first = options[0]
    values = {
        "bool": "false" if first.default else "true",
        "int": "4",
        "float": "0.5",
        "str": f'"{first.default or ""}"',
    }
    return f"{{{first.name}={values[first.type]}}}"


def _words() -> Iterator[PassInfo]:
    rounds = OptionInfo("max_rounds", "int", MAX_ROUNDS, "The most rounds.")
    rules = [OptionInfo("without", "str", "", _WITHOUT), OptionInfo("always", "str", "", _ALWAYS)]
    leaves = [OptionInfo("without", "str", "", "Passes that are left out, separated by blanks.")]
    growth = OptionInfo("max_growth", "int", None, _GROWTH)
    yield PassInfo(
        CANONICALIZE, "word", CANONICAL_FORM, "built-in", [rounds, growth, *rules], (), "canonicalize, fuse.*, dce"
    )
    yield PassInfo(
        "fixpoint", "word", "Repeats the passes within until none changes anything.", "built-in", [rounds], (),
        "fixpoint{max_rounds=3}(fold, cse, dce)",
    )  # fmt: skip
    yield PassInfo(
        "fuse.*", "word", "Every fusion that comes with ortfuse, but for those that the pipeline names itself.", "built-in",
        leaves, (), 'canonicalize, fuse.*{without="fuse.rotary"}, dce',
    )  # fmt: skip
    yield PassInfo(
        "user", "word", "Every pass of rule files that do not come with ortfuse, but for those named.", "built-in", [], (),
        "canonicalize, user, dce",
    )  # fmt: skip
    yield PassInfo("auto", "word", "The pass list that suits the model.", "built-in", leaves, (), "auto")


def _of_rules(catalogue: Catalogue, sources: Mapping[str, str]) -> Iterator[PassInfo]:
    for name, rules in catalogue.passes().items():
        if name == CANONICALIZE or not rules:
            continue
        families = ", ".join(dict.fromkeys(rule.name.partition(".")[0] for rule in rules))
        options = [OptionInfo("without", "str", "", _WITHOUT), OptionInfo("always", "str", "", _ALWAYS)]
        what = f"Applies {len(rules)} {'rule' if len(rules) == 1 else 'rules'} of the families {families}."
        example = f'{CANONICALIZE}, {name}{{without="{rules[0].name}"}}, dce'
        exactness = max((rule.exactness for rule in rules), key=list(Exactness).index)
        names = [rule.name for rule in rules]
        yield PassInfo(name, "rules", what, sources[rules[0].name], options, names, example, exactness.value)


def _rule(rule: Rule, pass_name: str) -> RuleInfo:
    return RuleInfo(
        rule.name,
        rule.name.partition(".")[0],
        pass_name,
        rule.formula,
        rule.exactness.value,
        list(rule.targets),
        rule.source,
    )


def _list(entry: PassList) -> ListInfo:
    when = "" if entry.when is None else str(entry.when)
    return ListInfo(entry.name, entry.description, entry.reason, str(entry.pipeline), when)
