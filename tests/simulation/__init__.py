"""A simulated cluster around the real control plane: virtual time, faults, one seed."""
