"""Where regions lie on an image: extents of grids, boxes and masks, and measured receptive fields."""
