"""Losses: the cross entropy over chunks of logits, and alternatives to it."""
