"""Configs: read YAML files, check which classes they may name, build and save their objects."""
