"""Measurements on a GPU: speeds, kernels, and a prepared day of tests and trainings."""
