"""Annotation vectors on disk: caches of an encoder's vectors, and files that other programs wrote."""
