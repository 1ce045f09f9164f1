"""The data sets, a folder for each kind, and the code that several kinds share: vocabularies, tables, batches."""
