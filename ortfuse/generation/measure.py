"""Measure generations: time to the first token, tokens per second and memory, side by side."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortfuse.generation.candidates import Candidate, Running
from ortfuse.generation.peak_memory import peak_memory
from ortfuse.serialization import Record

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GenerationLatency(Record):
    """How fast one model generates.

    Attributes:
        name: The model.
        first: Seconds from the prompt to its scores (median over rounds).
        tokens_per_second: New tokens per second after the first one, by the median step of each round (median over rounds).
        steps: Seconds of single steps by the number of tokens before them (median over rounds).
        ratio: The first model's median step over this one's (median over rounds).
        ratio_first: The same for the prompt.
        memory: The most bytes that a process of its own holds while it generates, less what it holds with a model of one node;
            `None` if the system does not tell.
    """

    name: str
    first: float
    tokens_per_second: float
    steps: Mapping[int, float]
    ratio: float
    ratio_first: float
    memory: int | None


@dataclass(frozen=True)
class GenerationLatencies(Record):
    """Generations of several models, measured in interleaved rounds.

    Attributes:
        prompt: Tokens of the prompt.
        new_tokens: Tokens that are generated.
        rounds: How many rounds there were.
        models: The models; the first one is the baseline.
        same_tokens: Whether all took the same tokens, by greedy decoding.
    """

    prompt: int
    new_tokens: int
    rounds: int
    models: Sequence[GenerationLatency]
    same_tokens: bool


@dataclass
class _Times:
    first: list[float] = field(default_factory=list)
    steps: list[list[float]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def measure_generations(
    candidates: Mapping[str, Candidate], prompt: Array, new_tokens: int, rounds: int
) -> GenerationLatencies:
    """Generate with each model in turn, round after round, by greedy decoding.

    Args:
        candidates: The models by name. They are loaded once, before the first round.
        prompt: [1, tokens].
        new_tokens: How many tokens to generate.
        rounds: How often.
    """
    memory = {name: peak_memory(one, prompt, new_tokens) for name, one in candidates.items()}
    made = {name: one.load() for name, one in candidates.items()}
    times = {name: _Times() for name in made}
    for number in range(rounds + 1):
        for name, model in made.items():
            found = _generate(model, prompt, new_tokens)
            if number:  # the first round warms up
                times[name].first += found.first
                times[name].steps += found.steps
            times[name].tokens = found.tokens
    baseline = next(iter(times.values()))
    return GenerationLatencies(
        prompt.shape[1],
        new_tokens,
        rounds,
        [_latency(name, one, baseline, prompt.shape[1], memory[name]) for name, one in times.items()],
        all(one.tokens == baseline.tokens for one in times.values()),
    )


def _generate(model: Running, prompt: Array, new_tokens: int) -> _Times:
    found = _Times()
    gc.disable()
    try:
        began = time.perf_counter()
        scores = model.first(prompt)
        found.first.append(time.perf_counter() - began)
        steps = []
        for _ in range(new_tokens):
            token = int(np.argmax(scores[0]))
            found.tokens.append(token)
            given = np.array([[token]])
            began = time.perf_counter()
            scores = model.next(given)
            steps.append(time.perf_counter() - began)
        found.steps.append(steps)
    finally:
        gc.enable()
    return found


def _latency(name: str, times: _Times, baseline: _Times, prompt: int, memory: int | None) -> GenerationLatency:
    typical, theirs = ([statistics.median(steps) for steps in one.steps] for one in (times, baseline))
    count = len(times.steps[0])
    marks = sorted({0, count // 2, count - 1})
    near = 4

    def at(mark: int) -> float:
        around = range(max(0, mark - near), min(count, mark + near + 1))
        return statistics.median(steps[number] for steps in times.steps for number in around)

    return GenerationLatency(
        name,
        statistics.median(times.first),
        1 / statistics.median(typical),
        {prompt + mark: at(mark) for mark in marks},
        statistics.median(ours / own for ours, own in zip(theirs, typical, strict=True)),
        statistics.median(ours / own for ours, own in zip(baseline.first, times.first, strict=True)),
        memory,
    )
