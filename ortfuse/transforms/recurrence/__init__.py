"""Recurrent networks that were spelled out, step by step or as a loop: back to the operators LSTM, GRU and RNN."""

from ortfuse.transforms.recurrence.eliminate_unbind_stack import EliminateUnbindStack
from ortfuse.transforms.recurrence.fuse_recurrent import FuseRecurrent
from ortfuse.transforms.recurrence.vectorize_loops import VectorizeLoops

__all__ = ["EliminateUnbindStack", "FuseRecurrent", "VectorizeLoops"]
