"""The results of commands as pages (`--report FILE.html`)."""

from ortfuse.report.pages.difference import difference_page
from ortfuse.report.pages.fleet import fleet_page
from ortfuse.report.pages.latencies import bench_page
from ortfuse.report.pages.optimisation import optimisation_page
from ortfuse.report.pages.profiling import profile_page
from ortfuse.report.pages.quantisation import quantisation_page
from ortfuse.report.pages.results import write_result_page
from ortfuse.report.pages.tuning import tuning_page, unmet_page

__all__ = [
    "bench_page",
    "difference_page",
    "fleet_page",
    "optimisation_page",
    "profile_page",
    "quantisation_page",
    "tuning_page",
    "unmet_page",
    "write_result_page",
]
