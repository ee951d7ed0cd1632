"""Code shared by test folders: a separate server, small specs, waiting for a condition."""
