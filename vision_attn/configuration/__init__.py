"""From YAML to parts, and back: reading, trust, moved names, the hub."""
