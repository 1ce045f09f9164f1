"""Speed and memory of vision_attn beside a plain reference, and their ratio: `python -m benchmarks --help`."""
