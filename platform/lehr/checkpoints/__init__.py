"""Checkpoints beyond the disk that they were written to: places, copies, checks.

Torch-free: the server verifies and serves them, the nodes' side processes copy them.
"""
