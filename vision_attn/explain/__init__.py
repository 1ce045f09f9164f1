"""Explain models of any library with maps: recorded attention, relevance, rollout, Grad-CAM."""
