"""Kernels for GPUs, written in Triton: one file for each operation, which has its plain version in `layers` or
`attention`. `launch.on_gpu` says whether they run. `graphs` records and replays the kernels of any function."""
