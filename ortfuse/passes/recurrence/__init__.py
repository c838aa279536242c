"""Recurrent networks that were spelled out, step by step or as a loop: back to the operators LSTM, GRU and RNN."""

from ortfuse.passes.recurrence.loops import Loops
from ortfuse.passes.recurrence.recurrent import Recurrent
from ortfuse.passes.recurrence.stacks import Stacks

__all__ = ["Loops", "Recurrent", "Stacks"]
