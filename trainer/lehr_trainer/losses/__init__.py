"""Losses over chunks of the logits, and variants of them for comparison."""
