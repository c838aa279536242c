"""The whole grid: every base in every variant.

    python -m tests.fuzz.files [--base "gelu"] [--pairs 500] [--step 10] [--output FILE]

Figures go to the summary `trust.files` of the benchmarks.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.results import Results

from .bases import BASES, base
from .trial import NOT_LOADED, tried
from .variants import Variant, pairs, variants


def _cases(names: list[str], more: int) -> Iterator[tuple[str, Variant]]:
    for name in names:
        for variant in variants(base(name)):
            yield name, variant
    rng = random.Random(0)
    for _ in range(more):
        name = rng.choice(names)
        found = itertools.islice(pairs(base(name)), rng.randrange(3000), None, 997)
        for label, model in itertools.islice(found, 4):
            yield name, Variant(label, model.SerializeToString(), {})


def main() -> int:
    """Run, write the figures, and end with 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", action="append")
    parser.add_argument("--pairs", type=int, default=0, help="so many variants of variants, too")
    parser.add_argument("--step", type=int, default=1, help="only every so many variants")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    failures = []
    for name, variant in itertools.islice(_cases(options.base or list(BASES), options.pairs), 0, None, options.step):
        with tempfile.TemporaryDirectory(prefix="ortfuse-files-") as folder:
            answer = tried(variant, Path(folder))
        counts["not loaded" if answer == NOT_LOADED else "failed" if answer else "right"] += 1
        if answer not in (None, NOT_LOADED):
            failures.append({"base": name, "variant": variant.label, "failure": answer})
            print(f"{name} | {variant.label} | {' '.join(str(answer).split())[-400:]}", flush=True)
    command = "python -m tests.fuzz.files" + f" --pairs {options.pairs}" * bool(options.pairs)
    command += f" --step {options.step}" * (options.step > 1)
    print(dict(counts))
    if options.output or not options.base:
        summed = [f"{one['base']}, {one['variant']}: {one['failure']}"[:200] for one in failures]
        found = {"bases": len(options.base or BASES), "variants": dict(counts), "failures": summed}
        Results("trust.files", options.output).store(command, found, raw={"failures": failures})
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
