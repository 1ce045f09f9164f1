"""Films: drawn films, whose events, captions, boxes and times are known, and films in files."""
