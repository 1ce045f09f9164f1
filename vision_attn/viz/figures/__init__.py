"""Figures for papers by matplotlib: PDF, SVG and PNG at a width in inches, with text as text."""
