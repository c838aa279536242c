"""Move Reshapes above and below operators: what an operator becomes whose result is needed in another shape."""
