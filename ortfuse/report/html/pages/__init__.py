"""The results of commands as pages (`--report FILE.html`)."""

from ortfuse.report.html.pages.bench import bench_page
from ortfuse.report.html.pages.optimization import optimisation_page
from ortfuse.report.html.pages.quantization import quantisation_page
from ortfuse.report.html.pages.results import write_result_page

__all__ = [
    "bench_page",
    "optimisation_page",
    "quantisation_page",
    "write_result_page",
]
