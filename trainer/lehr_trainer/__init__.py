"""Lehr's trainer: pretrains one language model from one resolved config.

It knows torch and the run directory, and nothing of Ray, HTTP or databases:
``torchrun -m lehr_trainer RUN_DIR`` is its whole interface. Importing this
package, ``config``, ``records`` or ``layout`` does not import torch.
"""
