"""Encoders, which turn images into annotation vectors: pretrained networks, small ones to train."""
