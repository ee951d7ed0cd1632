"""The first hour on a rented GPU machine, as one command: ``make gpu``. See docs/gpu.md."""
