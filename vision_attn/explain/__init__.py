"""Where models look that were written without this package: recording, and what to make of the maps."""
