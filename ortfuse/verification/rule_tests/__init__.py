"""Proofs of rules from their declarations alone."""

from ortfuse.verification.rule_tests.rule_test import ProofReport, prove

__all__ = ["ProofReport", "prove"]
