"""Images of lines with their transcripts."""
