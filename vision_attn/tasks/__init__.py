"""Tasks, which the engine trains and evaluates: a model with its loss, its metrics and its pictures."""
