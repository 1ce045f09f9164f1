"""Stories with questions about them, generated or read from files in bAbI's format."""
