"""Models whose loops over time steps run faster."""
