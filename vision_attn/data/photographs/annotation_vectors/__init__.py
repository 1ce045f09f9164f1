"""Annotation vectors on disk: caches of those that an encoder makes, and files and databases of given ones."""
