"""What is measured on a GPU."""
