"""Soak: two machines under faults for hours, with the server's memory, handles and disk over time."""
