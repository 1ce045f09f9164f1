"""Draw attention maps over pictures, in four views and with two scales."""
