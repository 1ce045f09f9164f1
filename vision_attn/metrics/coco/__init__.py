"""COCO's metrics of captions, computed by its own code, some of it Java, in isolated processes."""
