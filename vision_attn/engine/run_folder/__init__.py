"""The folder of a run: locks, checkpoints, the best weights, and the start from another run."""
