"""Options of ortfuse: every setting besides the model, validated once, from Python or from a file.

    options = Options(max_opset=21, verify="whole")
    options.with_(bench=True)
    Options.load("ortfuse.toml")

In a TOML file the keys are the names of the options. Relative paths in it are relative to its folder:

    passes = "canonicalize, fuse.attention"
    patterns = ["my_rules.py"]
    verify = "sites"
    force = { attention = "com.microsoft.MultiHeadAttention" }

Adding an option is adding a field to `Options` in `ortfuse.options.options`; `python docs/options.py` then writes the keywords of
the functions and the page of options.
"""

from ortfuse.options.checks import LARGEST_FLOAT
from ortfuse.options.declaration import TITLES, Declaration
from ortfuse.options.keywords import AllOptions, BenchOptions, BisectOptions, ComparisonOptions, PipelineOptions
from ortfuse.options.options import DECLARATIONS, FORMER, IN_FILES, Options
from ortfuse.options.parse_text import LONGEST
from ortfuse.options.paths import from_folder, named_paths
from ortfuse.options.type_aliases import (
    FixedLike,
    InputsLike,
    Level,
    PathLike,
    PatternsLike,
    PipelineLike,
    Purpose,
    RangeLike,
    TargetLike,
    Verification,
)

__all__ = [
    "DECLARATIONS",
    "FORMER",
    "IN_FILES",
    "LARGEST_FLOAT",
    "LONGEST",
    "TITLES",
    "AllOptions",
    "BenchOptions",
    "BisectOptions",
    "ComparisonOptions",
    "Declaration",
    "FixedLike",
    "InputsLike",
    "Level",
    "Options",
    "PathLike",
    "PatternsLike",
    "PipelineLike",
    "PipelineOptions",
    "Purpose",
    "RangeLike",
    "TargetLike",
    "Verification",
    "from_folder",
    "named_paths",
]
