"""Read image files of any format within limits, as RGB squares or as pixels that are sliced."""
