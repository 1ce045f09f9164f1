"""Tasks, which the engine trains and evaluates: a model with its loss, metrics and pictures."""
