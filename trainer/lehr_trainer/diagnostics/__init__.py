"""Metrics about the training itself: parameter statistics, memory traces, profiles."""
