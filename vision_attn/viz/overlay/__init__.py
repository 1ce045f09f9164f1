"""Draw maps over pictures: their views and their scales."""
