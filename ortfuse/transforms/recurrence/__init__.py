"""Recurrent networks that were spelled out, step by step or as a loop: back to the operators LSTM, GRU and RNN."""

from ortfuse.transforms.recurrence.fuse_loops import Loops
from ortfuse.transforms.recurrence.fuse_unrolled import Recurrent
from ortfuse.transforms.recurrence.stack_of_elements import Stacks

__all__ = ["Loops", "Recurrent", "Stacks"]
