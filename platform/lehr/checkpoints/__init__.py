"""Checkpoints beyond the disk on which they were written: locations, copies, verification.

Free of torch: the server verifies and serves them, side processes on the nodes copy them.
"""
