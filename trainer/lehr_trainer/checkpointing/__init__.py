"""Checkpoints: saving, loading, retention and resuming."""
