"""Every rule of the catalogue is proved from its declaration."""

from __future__ import annotations

import pytest

from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Exactness, Rule
from ortfuse.verification.rule_tests import prove

MOST_NODES = 5000
"""Of all near misses of a rule together; `ortfuse test-rules` and `python -m benchmarks.trust.rule_tests` try all."""

RULES = [rule for rules in load_catalogue([]).passes().values() for rule in rules]


FIRST = {
    (id(rule.pattern), tuple(guard.__code__ for guard in rule.guards)): rule
    for rule in reversed(RULES)
    if rule.exactness is Exactness.LOSSY
}
"""Schemes for one pattern under the same conditions differ in what they make alone: near misses of the first are those of all."""


SIBLINGS = [rule for rule in RULES if rule.exactness is Exactness.LOSSY and rule not in FIRST.values()]


@pytest.mark.rule_test
@pytest.mark.sample(14)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in SIBLINGS], ids=lambda rule: rule.name)
def test_rule_is_proved(rule: Rule) -> None:
    report = prove(rule, pairs=8, most_nodes=MOST_NODES)
    assert report.proved, "\n".join(dict.fromkeys(report.failures))


@pytest.mark.rule_test
@pytest.mark.sample(5)
@pytest.mark.parametrize("rule", SIBLINGS, ids=lambda rule: rule.name)
def test_rule_that_shares_its_pattern_is_proved_on_instances(rule: Rule) -> None:
    report = prove(rule, pairs=0, near_misses=False)
    assert report.proved, "\n".join(dict.fromkeys(report.failures))


def test_rules_say_where_they_come_from_and_what_they_make() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.source and rule.formula for rule in RULES)
