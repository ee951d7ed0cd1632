"""Runs shown elsewhere: the mirror in Weights & Biases.

The mirror reads the replica, so it cannot slow a training; it lives in a child process of the
server, so it cannot slow or stop that either. ``keeper`` is the server's side, ``worker`` the
child, ``session`` one W&B run kept in step with one of ours; ``notes`` is what they leave in
``<home>/wandb/<run id>/``; ``rows`` and ``facts`` say what of a run becomes what in W&B (pure).
"""
