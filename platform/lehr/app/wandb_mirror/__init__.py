"""Mirror runs to Weights & Biases.

The mirror reads the replica, so it cannot slow a training. It runs in a child process of the
server, so it cannot slow or stop that either. ``controller`` is the server's side, ``worker`` the
child. ``session`` keeps one W&B run equal to one of Lehr's. ``state_files`` are in
``<home>/wandb/<run id>/``.
"""
