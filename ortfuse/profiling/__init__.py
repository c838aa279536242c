"""Profile a model: the runtime's profiler joined with the graph, and the roofline of the machine."""

from ortfuse.profiling.advise_on_bottlenecks import bottlenecks
from ortfuse.profiling.denormals import cost_of_denormals
from ortfuse.profiling.kernels import VIEWS, Group, Kernel
from ortfuse.profiling.latency_without_profiler import Timing
from ortfuse.profiling.profile_model import at_peaks, beyond, profile_of, side_by_side_of
from ortfuse.profiling.result import Bottleneck, Denormals, Profile, SideBySide, scale
from ortfuse.profiling.runtime_graph_optimizations import Creation, Fusion

__all__ = [
    "VIEWS",
    "Bottleneck",
    "Creation",
    "Denormals",
    "Fusion",
    "Group",
    "Kernel",
    "Profile",
    "SideBySide",
    "Timing",
    "at_peaks",
    "beyond",
    "bottlenecks",
    "cost_of_denormals",
    "profile_of",
    "scale",
    "side_by_side_of",
]
