"""Fast versions of models, whose loops over time steps run faster."""
