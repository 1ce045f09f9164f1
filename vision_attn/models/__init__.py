"""Who attends: captioners, classifiers and DRAW, one paper per file."""
