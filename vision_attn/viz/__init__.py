"""Tensors to pictures, animations and pages: PNG, GIF, HTML."""
