"""Pipelines: their text, pass lists, the registry of passes, the catalogue of rules, and the manager that runs them."""

from ortfuse.pipeline.discover_rule_files import load_catalogue, rules_in
from ortfuse.pipeline.manager import PassManager
from ortfuse.pipeline.model_features import Content
from ortfuse.pipeline.pass_lists import PassList, built_in_lists, lists_with, read_list, suitable_list
from ortfuse.pipeline.pipeline_text import Pipeline, parse
from ortfuse.pipeline.registry import passes, register_pass
from ortfuse.pipeline.report import Counts, PassReport, RunReport
from ortfuse.pipeline.rule_catalogue import Catalogue, RuleFile
from ortfuse.pipeline.schedule import OnPass, PassEvent, Schedule

__all__ = [
    "Catalogue",
    "Content",
    "Counts",
    "OnPass",
    "PassEvent",
    "PassList",
    "PassManager",
    "PassReport",
    "Pipeline",
    "RuleFile",
    "RunReport",
    "Schedule",
    "built_in_lists",
    "lists_with",
    "load_catalogue",
    "parse",
    "passes",
    "read_list",
    "register_pass",
    "rules_in",
    "suitable_list",
]
