"""Compute COCO's caption metrics by COCO's own code, some of it Java, in isolated processes."""
