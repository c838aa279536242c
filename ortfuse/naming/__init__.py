"""Names of rules, families, passes and pass lists: former names resolve to those of today."""

from ortfuse.naming.former_rules_and_passes import (
    Kind,
    RenamedWarning,
    former_names,
    name_today,
    names_today,
    number_by_name,
    warn_of_former,
)

__all__ = ["Kind", "RenamedWarning", "former_names", "name_today", "names_today", "number_by_name", "warn_of_former"]
