"""Arithmetic without torch: parameter and FLOP counts, memory plans, GPU data, expected first loss."""
