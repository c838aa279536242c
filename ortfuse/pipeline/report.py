"""Report of a run: time and changes per pass, sites per rule, and the model before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.ir.walk import nodes
from ortfuse.rewrite import Event, Log, NearMiss
from ortfuse.rewrite.rewrite_log import RuleStatistics
from ortfuse.serialization import Record, derived, entry
from ortfuse.transforms import Choice, Grown, constant_bytes


@dataclass
class PassReport:
    """The report of one item of a pipeline. A fixpoint has its passes as `parts`, each summed over the rounds.

    Attributes:
        name: The item as written in a pipeline.
        seconds: Time spent.
        runs: How often it was run.
        changes: What it changed, in units of its own (nodes folded, sites rewritten, ...).
        nodes_before: Nodes of the model, all graphs together, before its first run.
        nodes_after: The same with the nodes that its own runs removed or added, whatever other passes did between them.
        hits: For each rule, how many sites it rewrote.
        bytes: The bytes that its own runs added to the constants of the model; negative if they removed some.
    """

    name: str
    seconds: float = 0.0
    runs: int = 0
    changes: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    parts: list[PassReport] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The name of the pass without its parts: `fixpoint`."""
        return self.name.partition("(")[0]

    @property
    def only(self) -> PassReport | None:
        """The repetition within this one that made all of its changes, and so says all that this one does; else `None`."""
        changed = [part for part in self.parts if part.changes]
        return changed[0] if len(changed) == 1 and changed[0].kind == self.kind and changed[0].parts else None

    def leaves(self) -> list[PassReport]:
        """The reports of the passes that this one consists of, or itself."""
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]


@dataclass(frozen=True)
class Counts:
    """The nodes of a model, in all its graphs, and the bytes of the constants that they use.

    Attributes:
        nodes: All nodes.
        operators: Those of each operator, with its domain if that is not ai.onnx.
        constants: The bytes of the constants, without strings.
    """

    nodes: int
    operators: dict[str, int]
    constants: int = 0

    @classmethod
    def of(cls, model: ir.Model) -> Counts:
        """Count the nodes and the constants of a model."""
        found = Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes(model))
        return cls(sum(found.values()), dict(found.most_common()), constant_bytes(model))


@dataclass(frozen=True)
class Remark:
    """The sites of a family that were left as they are although a rule of it nearly takes them.

    Attributes:
        family: The family.
        rule: The rule that came nearest at the first of them.
        sites: The values there; none if a rule of the user's own came near nowhere.
        reason: What stopped the rule at the first of them.
        remedy: What would help there, as the end of a sentence that begins with "it would match if".
    """

    family: str
    rule: str
    sites: tuple[str, ...]
    reason: str
    remedy: str

    def text(self) -> str:
        """The remark in words."""
        if not self.sites:
            return f"{self.rule} was applied nowhere: {self.reason}"
        count = len(self.sites)
        where = f"'{self.sites[0]}'" + (" and others" if count > 1 else "")
        left = f"{count} {'site' if count == 1 else 'sites'} left as {'it was' if count == 1 else 'they were'}"
        return (
            f"{self.family}: {left} ({where}); {self.rule} was stopped: {self.reason}; it would match if {self.remedy}"
        )


@dataclass
class RunReport(Record):
    """One run of a pipeline over a model.

    Attributes:
        pipeline: The pipeline in textual form, with pass lists resolved.
        passes: One report for each of its items, in order.
        before: The nodes of the model before.
        after: The nodes of the model after.
        seconds: Time in the engine: analysis and passes, without loading and saving.
        analysis_seconds: The part of `seconds` spent on computing the facts before the first pass.
        log: Every rewrite, the statistics of every rule and, if asked for, the near misses.
        choices: The decisions made by cost: which rewrites were taken and which were not.
        notes: What could not be done and why.
        failures: Passes and rules that failed on the model or undid each other, and were left out or stopped, each with what
            happened; these are mistakes in ortfuse.
        pass_list: The pass list that `auto` selected, with what in the model speaks for it; empty if it was not asked.
        folded: The constants of the result that folding made larger than the constants they come from, the largest first.
        not_folded: Constant values that are left to the runtime, as folding them would make the file grow too much.
        remarks: For each family the sites that were left although a rule nearly takes them, with the reason and what would
            help. `optimize` adds them, and their words to the notes; a pass manager alone does not.
    """

    pipeline: str
    passes: list[PassReport]
    before: Counts
    after: Counts
    seconds: float
    analysis_seconds: float
    log: Log = field(metadata=entry(omit=True))
    choices: Sequence[Choice]
    notes: list[str]
    failures: list[str] = field(default_factory=list)
    pass_list: str = ""
    remarks: Sequence[Remark] = ()
    folded: Sequence[Grown] = ()
    not_folded: Sequence[Grown] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def headline(self) -> str:
        """The nodes before and after and the fused sites of each family, in one line."""
        fused = ", ".join(f"{name} {count}" for name, count in self.families().items())
        return f"{self.before.nodes} -> {self.after.nodes} nodes; fused sites: {fused or 'none'}"

    def summary(self) -> str:
        """The nodes, fused and improved sites, and the passes that changed something with what they changed, line by line."""
        improved = ", ".join(f"{name} {count}" for name, count in self.improved().items())
        leaves = [leaf for report in self.passes for leaf in report.leaves() if leaf.changes]
        changes: Counter[str] = Counter()
        for leaf in leaves:
            changes[leaf.name] += leaf.changes
        return "\n".join([
            self.headline(),
            *([f"improved, which were one operator before: {improved}"] if improved else []),
            f"auto takes {self.pass_list}" if self.pass_list else f"passes: {self.pipeline}",
            f"changes: {', '.join(f'{name} {count}' for name, count in changes.items()) or 'none'} ({self.seconds:.2f} s)",
        ])  # fmt: skip

    def growth(self) -> dict[str, int]:
        """The bytes that each pass added to the constants or removed from them, those that added most first."""
        found: Counter[str] = Counter()
        for report in self.passes:
            for leaf in report.leaves():
                found[leaf.name] += leaf.bytes
        return {name: size for name, size in found.most_common() if size}

    @property
    @derived()
    def events(self) -> list[Event]:
        """Every rewrite in order."""
        return self.log.events

    @property
    @derived()
    def misses(self) -> list[NearMiss]:
        """The near misses of rules, each with its refusal; empty unless `explain` was asked for."""
        return list(self.log.misses.values())

    @derived()
    def families(self) -> dict[str, int]:
        """The number of fused sites in the result for each family of fusions; rewrites to canonical form are not counted.

        A site that a later pass took apart, or that nothing needed any more, is not there and not counted.

        Operators that the model had before the run, such as a `Gelu` of the exporter, are not among them: see `improved`.
        """
        found: Counter[str] = Counter()
        for rule, hits in self._fusions().items():
            if not self.log.statistics(rule).is_refinement:
                found[rule.partition(".")[0]] += self.log.there(rule, hits)
        return {family: count for family, count in found.most_common() if count}

    @derived()
    def improved(self) -> dict[str, int]:
        """The number of sites of each family that the model had as one operator and that got a better one, such as with a bias.

        Sites that rules of this run have made are not counted again: they are among those of `families`.
        """
        fusions, made = self._fusions(), set[str]()
        hits, found = Counter[str](), Counter[str]()
        for event in self.events:
            if event.rule not in fusions:
                continue
            if self.log.statistics(event.rule).is_refinement and made.isdisjoint(event.removed):
                hits[event.rule] += 1
            made.update(event.added)
        for rule, count in hits.items():
            found[rule.partition(".")[0]] += self.log.there(rule, count)
        return {family: count for family, count in found.most_common() if count}

    def _fusions(self) -> Counter[str]:
        """The number of applications of each rule, without those that bring a model to canonical form."""
        hits: Counter[str] = Counter()
        for report in self.passes:
            for leaf in report.leaves():
                if leaf.name != "canonicalize":
                    hits.update(leaf.hits)
        return hits

    @property
    @derived()
    def rules(self) -> Mapping[str, RuleStatistics]:
        """Statistics of each rule."""
        return self.log.rules

    @property
    @derived()
    def lost(self) -> Mapping[str, int]:
        """The number of fused sites of each rule that are not in the result any more."""
        return self.log.lost
