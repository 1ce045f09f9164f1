"""Explain captioners of transformers: prompts, generated words, and a map for each word."""
