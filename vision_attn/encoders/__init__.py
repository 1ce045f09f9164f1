"""Images to annotation vectors."""
