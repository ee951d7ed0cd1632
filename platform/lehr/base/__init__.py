"""What all rooms use: errors, formats, the home, roles and tokens. It knows nothing of runs."""
