"""Images and films of strangers, decoded in processes of their own, within memory and time."""
