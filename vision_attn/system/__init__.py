"""Files, the terminal, memory, threads and the machine: requests to the operating system."""
