"""The package's dealings with the operating system: files, the terminal, memory, threads, the machine."""
