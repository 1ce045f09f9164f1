"""From YAML to parts, and back: reading, trust, names that moved, the hub."""
