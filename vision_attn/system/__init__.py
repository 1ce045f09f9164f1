"""The operating system: files, the terminal, memory, threads, the machine."""
