"""Selections of rows, which are hoisted towards what computes the rows (`hoist_selection`)."""
