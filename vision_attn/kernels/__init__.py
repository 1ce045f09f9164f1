"""Fused versions of single operations, one per file: `*_numba` for CPUs, `*_triton` for GPUs.

The plain version of each stands in `layers` or `attention`, and tests compare the two. `choice.fused_loops` and
`launch.on_gpu` say which one runs. `graphs` records and replays the kernels of any function on a GPU.
"""
