"""A callback for Lightning: ``Trainer(callbacks=[LehrCallback()])``."""

from __future__ import annotations

from typing import Any

import lehr_log

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback


class LehrCallback(Callback):  # type: ignore[misc]
    """Log what the module logs, and stop when Lehr asks.

    Checkpoints: declare the folder of ModelCheckpoint as ``trainer.saves``. In a process that Lehr
    did not start, it begins a run, with the arguments given here as those of ``lehr_log.init``.
    """

    def __init__(self, **given: Any) -> None:
        self._given = given

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero and not lehr_log.run.goes_on():
            lehr_log.init(**{"config": dict(pl_module.hparams), **self._given})

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.is_global_zero and trainer.callback_metrics:
            every = max(1, int(getattr(trainer, "log_every_n_steps", 1) or 1))
            if trainer.global_step % every == 0:
                lehr_log.log(dict(trainer.callback_metrics), step=trainer.global_step)
        if lehr_log.should_stop():
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        if trainer.is_global_zero and not trainer.sanity_checking:
            lehr_log.log(dict(trainer.callback_metrics), step=trainer.global_step)
