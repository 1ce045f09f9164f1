"""Read image files of any format, with limits on pixels and memory, as squares or to be sliced."""
