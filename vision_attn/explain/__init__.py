"""Maps of models that were built elsewhere: recording attention, relevance, rollout, Grad-CAM."""
