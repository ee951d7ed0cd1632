"""Metrics about the training itself: parameter statistics, memory by layer, profiles."""
