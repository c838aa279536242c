"""Convert a parsed pipeline to the steps that are run.

Besides registered passes, a name may be a pass of the catalogue (`fuse.attention`), a pass list (`transformer`), or one
of these:

- `canonicalize`: the rules of the canonical form together with inline_functions, lift_constants, fold, inline_branches, licm,
  eliminate_sequences, eliminate_unbind_stack, recomputed_lengths_to_conv_dims, drop_length_clamps, sink_transpose_below_split,
  simplify_data_movement of lists of indices, cse and dce, to a fixed point;
- `fuse.*`: every fusion that comes with ortfuse, except those that the pipeline names itself;
- `user`: every pass of rule files that do not come with ortfuse, or that the user asks for by name (`contrib.losses`), except
  those that the pipeline names itself;
- `auto`: the pass list that suits the model.

The option `without` leaves out passes of `fuse.*` and of pass lists: `all{without="fuse.rotary fuse.convolution"}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, TypeAlias

from ortfuse.errors import PipelineError
from ortfuse.naming import Kind, name_today, names_today
from ortfuse.pipeline import registry
from ortfuse.pipeline.built_in_passes import BUILT_IN
from ortfuse.pipeline.model_features import Content
from ortfuse.pipeline.pass_lists import FALLBACK, Lists, PassList, built_in_lists, suitable_list
from ortfuse.pipeline.pipeline_text import Call, FixpointCall, Item, Options
from ortfuse.pipeline.rule_catalogue import Catalogue
from ortfuse.targets import TargetSpec, default_spec
from ortfuse.transforms import Pass, RulePass

MAX_ROUNDS = 50
"""The most rounds of a fixpoint before it is given up, unless its options say otherwise."""

CANONICALIZE = "canonicalize"
FUSIONS = "fuse.*"
USER = "user"
AUTO = "auto"
FOLD = "fold"
INDEXED = "simplify_data_movement"

_CANONICAL = (
    "inline_functions",
    "lift_constants",
    FOLD,
    "inline_branches",
    "licm",
    "eliminate_sequences",
    "eliminate_unbind_stack",
    "recomputed_lengths_to_conv_dims",
    "drop_length_clamps",
    "sink_transpose_below_split",
    INDEXED,
    CANONICALIZE,
    "cse",
    "dce",
)
"""The passes of `canonicalize`; its own name stands for its rules."""

_RULE_OPTIONS = {"without": str, "always": str}
"""The options of a pass of rules; see `RulePass`."""


@dataclass(frozen=True)
class Single:
    """One pass, with the name that the pipeline uses for it."""

    name: str
    run: Pass


@dataclass(frozen=True)
class Repeated:
    """Steps that are repeated until none changes anything, at most `max_rounds` times."""

    name: str
    steps: tuple[Step, ...]
    max_rounds: int


Step: TypeAlias = Single | Repeated


class Builder:
    """Build the steps of one pipeline for a model with the given content (`None` if there is no model yet), and a target.

    Attributes:
        chosen: The list that `auto` selected, with the evidence; empty if the pipeline has no `auto`.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        content: Content | None = None,
        lists: Lists | None = None,
        target: TargetSpec | None = None,
    ) -> None:
        self._catalogue, self._content = catalogue, content
        self._lists = built_in_lists() if lists is None else lists
        self.chosen = ""
        self._rules = catalogue.entries()
        self._for_others = catalogue.for_others((target or default_spec()).name)
        self._fusions = [name for name in self._rules if name.startswith("fuse.")]
        self._users = (*catalogue.passes_from("package", "user"), *catalogue.asked)
        self._named: set[str] = set()
        passes = {CANONICALIZE, FUSIONS, USER, AUTO, *self._rules, *registry.names()}
        self._known = frozenset({*passes, *self._lists})
        hidden = sorted(self._lists.keys() & passes)
        if hidden:
            raise PipelineError(
                f"the pass list {hidden[0]!r} has the name of a pass, which it would hide; call it otherwise"
            )

    def build(self, items: Sequence[Item | Pass]) -> tuple[Step, ...]:
        """The steps of a pipeline. Pass lists and wildcards are expanded; passes given as objects are used as they are.

        Raises:
            PipelineError: There is no such pass, or it has no such option.
        """
        resolved = [found for item in items for found in self._resolve_lists(item, ())]
        self._named = {call.name for call in _calls(resolved)}
        return tuple(step for item in resolved for step in self._steps(item))

    def _resolve_lists(
        self, item: Item | Pass, inside: tuple[str, ...], without: frozenset[str] = frozenset()
    ) -> Iterator[Item | Pass]:
        """The item with its pass lists expanded, `without` some passes."""
        if isinstance(item, Call):
            item = self._of_today(item)
        if isinstance(item, FixpointCall):
            inner = [found for part in item.items for found in self._resolve_lists(part, inside, without)]
            yield FixpointCall(tuple(found for found in inner if isinstance(found, Call | FixpointCall)), item.options)
        elif isinstance(item, Call) and (known := self._list(item)) is not None:
            if known.name in inside:
                raise PipelineError(f"the pass list {known.name!r} contains itself")
            for part in known.pipeline.items:
                yield from self._resolve_lists(part, (*inside, known.name), without | self._left_out(item))
        elif isinstance(item, Call) and item.name == FUSIONS and without:
            yield Call(FUSIONS, {**item.options, "without": " ".join(sorted(without | self._left_out(item)))})
        elif not isinstance(item, Call) or item.name not in without:
            yield item

    def _left_out(self, call: Call) -> frozenset[str]:
        """The passes that a pass list or wildcard is to do without."""
        names = str(registry.checked_options(call, {"without": str}).get("without", "")).split()
        for name in names:
            if name not in self._rules and name not in registry.names():
                raise self._unknown(name)
        return frozenset(names)

    def _of_today(self, call: Call) -> Call:
        """The call with the names of today for passes, pass lists and rules that may be given by those of the past."""
        name = name_today(call.name, ("passes", "pass_lists"), self._known)
        rules = self._rules.get(name)
        kinds: tuple[Kind, ...] = ("passes",) if rules is None else ("rules",)
        known = self._known if rules is None else {rule.name for rule in rules}
        options = {
            key: names_today(value, kinds, known) if key in _RULE_OPTIONS and isinstance(value, str) else value
            for key, value in call.options.items()
        }
        return Call(name, options)

    def _list(self, call: Call) -> PassList | None:
        if call.name != AUTO:
            return self._lists.get(call.name)
        if self._content is None:
            return self._lists[FALLBACK]
        found = suitable_list(self._content, self._lists)
        evidence = "no other list suits it" if found.when is None else found.when.evidence(self._content)
        self.chosen = (
            f"{found.name}, since the model has {evidence}" if found.when is not None else f"{found.name}; {evidence}"
        )
        return found

    def _steps(self, item: Item | Pass) -> Iterator[Step]:
        if isinstance(item, FixpointCall):
            steps = tuple(step for part in item.items for step in self._steps(part))
            rounds = registry.checked_options(Call("fixpoint", item.options), {"max_rounds": int})
            yield Repeated(str(item), steps, int(rounds.get("max_rounds", MAX_ROUNDS)))
        elif not isinstance(item, Call):
            yield Single(str(call_of(item)), item)
        elif item.name == CANONICALIZE:
            yield self._canonicalize(item)
        elif item.name == FUSIONS:
            without = self._left_out(item) | frozenset(self._users)
            yield from self._wildcard(name for name in self._fusions if name not in without)
        elif item.name == USER:
            registry.checked_options(item, {})
            yield from self._wildcard(name for name in self._users if name != CANONICALIZE)
        elif item.name in self._rules:
            yield Single(str(item), self._rule_pass(item.name, registry.checked_options(item, _RULE_OPTIONS)))
        elif item.name in registry.names():
            yield Single(str(item), registry.make_pass(item))
        else:
            raise self._unknown(item.name)

    def _wildcard(self, names: Iterable[str]) -> Iterator[Step]:
        for name in names:
            if name not in self._named:
                yield Single(name, self._rule_pass(name, {}))

    def _rule_pass(self, name: str, options: Options) -> RulePass:
        rules = self._rules.get(name, ())
        known = {rule.name for rule in rules}
        chosen = {key: str(options[key]) for key in _RULE_OPTIONS if key in options}
        # A rule whose former name leads to a pass is none of these any more.
        chosen = {key: " ".join(one for one in text.split() if one not in BUILT_IN) for key, text in chosen.items()}
        for listed in " ".join(chosen.values()).split():
            if listed not in known:
                raise PipelineError(f"{name} has no rule {listed!r}{registry.suggestion(listed, known)}")
        return RulePass(name, tuple(rule for rule in rules if rule.name not in self._for_others), **chosen)

    def _canonicalize(self, call: Call) -> Step:
        options = registry.checked_options(call, {"max_rounds": int, "max_growth": int, **_RULE_OPTIONS})
        growth = {"max_growth": int(options["max_growth"])} if "max_growth" in options else {}
        made: dict[str, Pass] = {
            CANONICALIZE: self._rule_pass(CANONICALIZE, options),
            FOLD: registry.make_pass(Call(FOLD, growth)),
            INDEXED: registry.make_pass(Call(INDEXED, {"indexed": True})),
        }
        passes = [made.get(name) or registry.make_pass(Call(name, {})) for name in _CANONICAL]
        steps = tuple(Single(one.name, one) for one in passes)
        return Repeated(str(call), steps, int(options.get("max_rounds", MAX_ROUNDS)))

    def _unknown(self, name: str) -> PipelineError:
        inside = [
            found.name for found in self._lists.values() if name in {call.name for call in _calls(found.pipeline.items)}
        ]
        return PipelineError(
            f"{f'pass list {inside[0]}: ' if inside else ''}there is no pass or pass list {name!r}"
            f"{registry.suggestion(name, sorted(self._known))}; `ortfuse passes` shows all"
        )


def call_of(made: Pass) -> Call:
    """The pass in textual form, with the options that are not at their defaults."""
    options: dict[str, Any] = {}
    if is_dataclass(made):
        for field in fields(made):
            value = getattr(made, field.name)
            if field.default is not MISSING and value != field.default:
                options[field.name] = value
    return Call(made.name, options)


def _calls(items: Iterable[Item | Pass]) -> Iterator[Call]:
    for item in items:
        if isinstance(item, FixpointCall):
            yield from _calls(item.items)
        elif isinstance(item, Call):
            yield item
