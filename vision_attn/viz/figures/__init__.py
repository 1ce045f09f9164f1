"""Draw figures for papers with matplotlib: PDF, SVG and PNG at a width in inches, with text as text."""
