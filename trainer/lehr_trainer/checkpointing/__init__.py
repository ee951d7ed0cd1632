"""Saving, loading, retaining and resuming from checkpoints."""
