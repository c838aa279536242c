"""Proofs of rules from their declarations alone."""

from ortfuse.proof.prove import ProofReport, prove

__all__ = ["ProofReport", "prove"]
