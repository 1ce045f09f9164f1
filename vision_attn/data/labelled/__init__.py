"""Your own photographs with a label each, and with boxes of objects."""
