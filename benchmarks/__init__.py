"""Speed and memory of vision_attn and of a plain reference, and their ratio: `python -m benchmarks --help`."""
