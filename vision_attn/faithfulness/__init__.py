"""Measure how faithful maps are to their model: deletion and insertion curves, random weights."""
