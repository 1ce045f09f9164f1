"""Images of one's own with a label each."""
