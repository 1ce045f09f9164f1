"""The folder of a run: who may write to it, checkpoints, the best weights, and where a run starts."""
