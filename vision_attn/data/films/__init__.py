"""Films: drawn ones, whose events, captions, boxes and times are known, and those of files."""
