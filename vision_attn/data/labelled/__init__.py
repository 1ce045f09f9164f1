"""Images of your own with a label each."""
