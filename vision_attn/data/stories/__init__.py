"""Stories with questions about them: generated, and read from files."""
