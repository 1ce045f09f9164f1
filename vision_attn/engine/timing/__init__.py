"""Where the time of a run goes: its start, waiting for data, and the parts of its steps."""
