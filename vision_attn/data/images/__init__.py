"""Image files of any kind, decoded within limits, as RGB squares or as pixels to slice."""
