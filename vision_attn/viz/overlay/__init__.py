"""Maps over pictures: their views and their scales."""
