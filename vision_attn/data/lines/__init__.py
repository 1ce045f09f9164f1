"""Images of lines of characters, with their transcripts."""
