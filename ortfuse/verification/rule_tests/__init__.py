"""Rule tests: instances and near misses of rules, built from their declarations alone and run numerically."""

from ortfuse.verification.rule_tests.rule_test_runner import RuleTestReport, run_rule_test

ProofReport, prove = RuleTestReport, run_rule_test
"""The former names."""

__all__ = ["ProofReport", "RuleTestReport", "prove", "run_rule_test"]
