"""Recurrent networks that were spelled out, step by step or as a loop: back to the operators LSTM, GRU and RNN."""

from ortfuse.transforms.recurrence.fuse_loops import FuseLoops
from ortfuse.transforms.recurrence.fuse_unrolled import FuseUnrolledRecurrence
from ortfuse.transforms.recurrence.stack_of_elements import StackOfElements

__all__ = ["FuseLoops", "FuseUnrolledRecurrence", "StackOfElements"]
