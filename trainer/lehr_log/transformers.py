"""A callback for transformers' Trainer: ``Trainer(..., callbacks=[LehrCallback()])``."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

import lehr_log


class LehrCallback(TrainerCallback):  # type: ignore[misc]
    """Log what the Trainer logs, hand its checkpoints to Lehr, stop it when Lehr asks.

    In a process that Lehr did not start, it begins a run, with the arguments given here as those of
    ``lehr_log.init``.
    """

    def __init__(self, **given: Any) -> None:
        self._given = given

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero and not lehr_log.run.goes_on():
            own = {"name": args.run_name, "config": args.to_dict(), "steps": state.max_steps}
            lehr_log.init(**{**own, **self._given})

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
