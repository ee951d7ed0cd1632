"""What the fault tests need: networks, clocks and disks to break, and a judge of what followed."""
