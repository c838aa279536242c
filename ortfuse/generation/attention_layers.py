"""The attention of a decoder over its caches: how it reads them, which of it is rewritten, and which layer a cache belongs to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError
from ortfuse.generation.attention_sites import KERNEL_TYPES, AttentionSite, SiteReader
from ortfuse.generation.cache_operands import COMPUTED, CacheOperand, Keys, computing_between, read_last, read_operand
from ortfuse.generation.cache_readers import read_outside
from ortfuse.generation.check_target import AttentionCheck
from ortfuse.generation.decoder_interface import Cache, DecoderInterface
from ortfuse.generation.positional_values import PositionalValues

Operands = tuple[CacheOperand, CacheOperand]
"""How attention reads its keys and its values."""

Layer = tuple[int, Literal["key", "value"]]
"""The number of a cache's layer, from 0, and what it holds."""


class AttentionLayers:
    """Finds the attention over caches.

    Attributes:
        operands: How each attention reads keys and values from caches, or why that is not known.
        columns: The keys for which masks have columns.
        kept: Why a layer keeps a growing cache, by the name of its attention or cache.
    """

    def __init__(
        self,
        model: ir.Model,
        facts: Facts,
        decoder: DecoderInterface,
        values: PositionalValues,
        left: Mapping[str, str],
    ) -> None:
        """Take a decoder with its positional values, and why a cache in another layout is left as it is."""
        self.model, self.facts, self.decoder, self.values, self.left = model, facts, decoder, values, left
        self.kept: dict[str, str] = {}
        self.operands = self._attention()
        self.columns = self._columns(self.operands)

    def sites(self, reader: SiteReader, check: AttentionCheck) -> list[AttentionSite]:
        """The sites that are rewritten; `kept` gets the others.

        Raises:
            GenerationError: There is none.
        """
        read = {node: reader.read(node) for node in self.operands}
        padded = _of_common_sizes([site for site in read.values() if isinstance(site, AttentionSite)])
        sites = []
        for node, site in read.items():
            found = site if isinstance(site, str) else check.executed(padded[node])
            if isinstance(found, str):
                self.kept[node.name or node.outputs[0].name or ""] = found
            else:
                sites.append(found)
        sites = self._without_other_readers(sites)
        attended = {one.cache.past for node in self.operands for one in self._read(reader, node)}
        for cache in self.decoder.caches:
            if cache.past not in attended:
                name = cache.past.name or ""
                self.kept[name] = self.left.get(name) or self._why_not_attended(cache)
        if not sites:
            raise GenerationError(f"no layer can keep its cache in place. {_reasons(self.kept)}")
        return sites

    def numbers(self) -> dict[ir.Value, Layer]:
        """The layer of each cache, from 0, whether it has keys or values, and its attention.

        A cache that two layers share belongs to the first, and one that is keys and values at once is the keys.
        """
        found: dict[ir.Value, Layer] = {}
        number = 0
        for read in self.operands.values():
            if isinstance(read, str):
                continue
            kinds: tuple[Literal["key", "value"], ...] = ("key", "value")
            free = [
                (one.cache.past, kind) for one, kind in zip(read, kinds, strict=True) if one.cache.past not in found
            ]
            for past, kind in free:
                found.setdefault(past, (number, kind))
            number += bool(free)
        left = [cache.past for cache in self.decoder.caches if cache.past not in found]
        for place, past in enumerate(left):
            found[past] = (number + place // 2, "value" if place % 2 else "key")
        return found

    def _attention(self) -> dict[ir.Node, Operands | str]:
        """The attention over caches, with how its keys and values are read from them, or why that is not known."""
        pasts = {cache.past: cache for cache in self.decoder.caches}
        presents = {cache.present: cache for cache in self.decoder.caches if _is_appended(cache.present)}
        depends, cut = self._reached(presents), self._reached(pasts)
        found: dict[ir.Node, Operands | str] = {}
        for node in self.model.graph:
            if (node.domain, node.op_type) != ("", "Attention"):
                continue
            _, key, value, _, past_key, past_value = (*node.inputs, *[None] * 6)[:6]
            assert key is not None and value is not None
            if past_key in pasts and past_value in pasts:
                keys, values = pasts[past_key], pasts[past_value]
                found[node] = CacheOperand(keys, key, None, 1, ""), CacheOperand(values, value, None, 1, "")
            elif past_key in cut and past_value in cut:
                last = read_last(past_key, key, pasts, self.facts), read_last(past_value, value, pasts, self.facts)
                is_known = last[0] is not None and last[1] is not None
                found[node] = last if is_known else "its cache is cut or moved before something is appended"  # type: ignore[assignment]
            elif past_key is None and key in depends:
                read = [read_operand(one, presents, self.facts) for one in (key, value)]
                found[node] = next((one for one in read if isinstance(one, str)), None) or (read[0], read[1])  # type: ignore[assignment]
        return found

    def _columns(self, operands: dict[ir.Node, Operands | str]) -> dict[ir.Value, Keys]:
        """The keys for which masks have columns; attention that has others than another with its mask is given up."""
        found: dict[ir.Value, Keys] = {}
        for node, read in operands.items():
            mask = node.inputs[3] if len(node.inputs) > 3 else None
            if mask is None or mask not in self.values or isinstance(read, str):
                continue
            if found.setdefault(mask, read[0].keys) != read[0].keys:
                operands[node] = "another attention has its mask, and other keys"
        return found

    def _reached(self, sources: Collection[ir.Value]) -> set[ir.Value]:
        """Values that are computed from some others without an operator that multiplies matrices in between."""
        found = set(sources)
        for node in self.model.graph:
            if node.op_type not in ("Attention", "MatMul", "Gemm") and any(value in found for value in node.inputs):
                found.update(node.outputs)
        return found

    def _why_not_attended(self, cache: Cache) -> str:
        kind = self.facts.dtype(cache.past)
        if kind not in KERNEL_TYPES:
            return f"its type is {kind}, and the kernel takes FLOAT and FLOAT16"
        held = (cache.past, cache.present)
        for node in self.model.graph:
            if (node.domain, node.op_type) == ("", "Attention"):
                for value in node.inputs[1:3]:
                    computing = "" if value is None else computing_between(held, value, self.facts)
                    if computing:
                        return COMPUTED.format(computing)
        return "its attention is not fused into ai.onnx Attention"

    def _without_other_readers(self, sites: Sequence[AttentionSite]) -> list[AttentionSite]:
        """The sites whose caches nothing but such sites reads: what else reads a cache would see the whole buffer."""
        left = list(sites)
        while True:
            read = self._read_outside(left)
            shared = [site for site in left if site.keys.cache in read or site.values.cache in read]
            if not shared:
                return left
            for site in shared:
                self.kept[site.node.name or site.node.outputs[0].name or ""] = (
                    "its cache is read by something else, too"
                )
            left = [site for site in left if site not in shared]

    def _read_outside(self, sites: Sequence[AttentionSite]) -> set[Cache]:
        """The caches of sites whose elements are read by something that stays, once the sites are replaced."""
        caches = [one.cache for site in sites for one in (site.keys, site.values)]
        owners = {value: cache for cache in caches for value in (cache.past, cache.present)}
        replaced = {site.node: site for site in sites}

        def reads(value: ir.Value, producer: ir.Node) -> list[ir.Value] | None:
            site = replaced.get(producer)
            if site is not None:
                own = [] if value is producer.outputs[0] or value in owners else [site.keys.cache.past]
                return [site.queries, site.keys.new, site.values.new, *own]
            return [] if producer.op_type in ("Shape", "Size") and not producer.domain else None

        return read_outside((value for value in self.model.graph.outputs if value not in owners), owners, reads)

    @staticmethod
    def _read(reader: SiteReader, node: ir.Node) -> tuple[CacheOperand, ...]:
        found = reader.operands(node)
        return () if isinstance(found, str) else found


def _of_common_sizes(sites: Sequence[AttentionSite]) -> dict[ir.Node, AttentionSite]:
    """The sites by their node, with heads as large as those of each site that a cache, or several, connect with it."""
    sizes = {site.node: site.size for site in sites}
    of_cache: dict[Cache, int] = {}
    for _ in sites:  # each time, a size reaches the sites that have a cache in common
        for site in sites:
            caches = (site.keys.cache, site.values.cache)
            sizes[site.node] = max(sizes[site.node], *(of_cache.get(cache, 0) for cache in caches))
            of_cache.update(dict.fromkeys(caches, sizes[site.node]))
    return {site.node: site.of_size(sizes[site.node]) for site in sites}


def _reasons(kept: Mapping[str, str]) -> str:
    """The reasons why layers keep growing caches, each once, with the layers that it holds for."""
    layers: dict[str, list[str]] = {}
    for name, why in kept.items():
        layers.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in layers.items())


def _is_appended(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type in ("Concat", "Attention") and not producer.domain
