"""Measure how faithful maps are to their model: deletion and insertion curves, random weights, and a page of
results."""
