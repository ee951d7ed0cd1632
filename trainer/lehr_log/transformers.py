"""A callback for transformers' Trainer: ``Trainer(..., callbacks=[LehrCallback()])``."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

import lehr_log


class LehrCallback(TrainerCallback):  # type: ignore[misc]
    """Log what the Trainer logs, hand its checkpoints to Lehr, stop it when Lehr asks."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero and logs:
            lehr_log.log(logs, step=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        if lehr_log.should_stop():
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero:
            step = state.global_step
            lehr_log.checkpoint(f"{args.output_dir}/checkpoint-{step}", step=step)
