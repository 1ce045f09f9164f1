"""Whether a map is true to its model: deletion and insertion curves, random weights, and a page."""
