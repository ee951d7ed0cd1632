"""Lehr's trainer: pretrains one language model from one resolved config.

It needs torch and a run directory, and nothing of Ray, HTTP or databases: ``torchrun -m
lehr_trainer RUN_DIR`` is its whole interface. Importing this package, ``configs`` or ``contract``
does not import torch.
"""
