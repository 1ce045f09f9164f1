"""Tasks, which are trained and evaluated: a model, its criteria and its evaluators, put together."""
