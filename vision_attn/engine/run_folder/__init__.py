"""The folder of a run: what belongs in it, who writes it, checkpoints, the best weights, and what a run starts from."""
