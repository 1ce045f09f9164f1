"""Photographs with captions: annotation files, stores, caches of annotation vectors, batches."""
