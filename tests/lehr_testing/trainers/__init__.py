"""Trainers that replace the real one, slow it down, or break it."""
