"""Data sets, a folder for each kind, and what several kinds share: vocabularies, tables, batches."""
