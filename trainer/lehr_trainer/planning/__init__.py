"""Arithmetic without torch: counts of parameters and FLOPs, memory plans, GPU data."""
