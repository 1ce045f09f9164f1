"""Files, the terminal, memory, threads, the machine: what the package asks of the operating system."""
