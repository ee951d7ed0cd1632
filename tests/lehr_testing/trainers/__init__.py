"""Trainers that stand in for the real one, or slow it down, or break it."""
