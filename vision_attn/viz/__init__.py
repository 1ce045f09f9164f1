"""Draw tensors as pictures, animations and pages: PNG, GIF, HTML."""
