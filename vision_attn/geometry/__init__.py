"""Where regions lie on an image: extents of grids, masks, and receptive fields, as measured."""
