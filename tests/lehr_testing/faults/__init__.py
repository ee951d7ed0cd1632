"""Tools of the fault tests: networks, clocks and disks to break, and a judge of the history."""
