"""Where the time of a model goes: the runtime's profiler joined with the graph, and the roofline of the machine."""

from ortfuse.profiling.advice import bottlenecks
from ortfuse.profiling.creation import Creation, Fusion
from ortfuse.profiling.kernels import VIEWS, Group, Kernel
from ortfuse.profiling.result import SCHEMA, Bottleneck, Profile, SideBySide
from ortfuse.profiling.run import at_peaks, beyond, profile_of, side_by_side_of
from ortfuse.profiling.timing import Timing

__all__ = [
    "SCHEMA",
    "VIEWS",
    "Bottleneck",
    "Creation",
    "Fusion",
    "Group",
    "Kernel",
    "Profile",
    "SideBySide",
    "Timing",
    "at_peaks",
    "beyond",
    "bottlenecks",
    "profile_of",
    "side_by_side_of",
]
