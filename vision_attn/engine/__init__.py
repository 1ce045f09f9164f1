"""How a model is trained: steps, checkpoints, resuming, several processes. It knows no model."""
