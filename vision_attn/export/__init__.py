"""Models in formats that need no vision_attn."""
