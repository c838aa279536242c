"""Every rule of the catalogue is proved from its declaration."""

from __future__ import annotations

import pytest

from ortfuse.pipeline import load_catalogue
from ortfuse.proof import prove
from ortfuse.rewrite import Rule

RULES = [rule for rules in load_catalogue([]).passes().values() for rule in rules]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_is_proved(rule: Rule) -> None:
    report = prove(rule, pairs=8)
    assert report.proved, "\n".join(dict.fromkeys(report.failures))


def test_rules_say_where_they_come_from_and_what_they_make() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.source and rule.formula for rule in RULES)
