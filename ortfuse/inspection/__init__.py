"""Inspect a model: blocks found by patterns, costs and the limits of this machine."""

from ortfuse.inspection.block_assembly import find_blocks
from ortfuse.inspection.block_detectors import DETECTORS, PASSES, Detector
from ortfuse.inspection.inspect_model import Detour, FoundBlock, Import, Inspection, Port, Region, Weights, inspection
from ortfuse.inspection.paths_between_values import Block

__all__ = [
    "DETECTORS",
    "PASSES",
    "Block",
    "Detector",
    "Detour",
    "FoundBlock",
    "Import",
    "Inspection",
    "Port",
    "Region",
    "Weights",
    "find_blocks",
    "inspection",
]
