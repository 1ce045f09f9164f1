"""Captioners of transformers: prompts, generated words, and the map of each word."""
