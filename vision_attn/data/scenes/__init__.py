"""Drawn scenes: synthetic images whose objects, captions and boxes are known."""
