"""What the package asks of the operating system: files, the terminal, the machine."""
