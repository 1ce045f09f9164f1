"""Images and films of strangers, decoded in processes of their own, within limits of memory and time."""
