"""What several test folders share: a server of one's own, small specs, waiting for a condition."""
