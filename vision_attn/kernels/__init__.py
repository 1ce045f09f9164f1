"""Fused versions of single operations, one per file: `*_numba` for CPUs, `*_triton` for GPUs.

The plain version of each stands in `layers` or `attention`, and tests compare the two. `choice.fused`
says which one runs. `graphs` records and replays the kernels of any function on a GPU.
"""
