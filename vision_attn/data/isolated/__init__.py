"""Decode untrusted images and films in separate processes, within limits of memory and time."""
