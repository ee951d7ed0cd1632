"""From gradients to an update: unscale, clip, judge, step - without waiting for the device.

Whether a step is taken is a number on the device. Optimizers that can take it
there (fused AdamW, our Muon) skip without the host's knowing; for the others
the host has to ask, which costs one synchronisation a step.

A step is not taken when a gradient is not finite (always: one such update ruins
every weight), and, if asked for, when loss or gradient norm leap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from lehr_trainer.configs.updates import LossScaleConfig, SkipStepConfig


class UpdateStep:
    """Order in a step: ``scaled(loss).backward()``, ``clip``, ``step``."""

    def __init__(
        self,
        device: torch.device,
        *,
        loss_scale: LossScaleConfig | None = None,
        skip_step: SkipStepConfig | None = None,
    ) -> None:
        """Begin with no history.

        Args:
            device: where the parameters are.
            loss_scale: for fp16; None leaves the loss as it is.
            skip_step: for skipping leaps.
        """
        self._scaling = LossScale(loss_scale, device) if loss_scale is not None else None
        spikes = skip_step is not None and skip_step.enabled
        self._spikes = Spikes(skip_step, device) if spikes and skip_step is not None else None
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        """Updates not taken so far; on the device."""

    @property
    def loss_scale(self) -> Tensor | None:
        return None if self._scaling is None else self._scaling.scale

    @property
    def judges_loss(self) -> bool:
        """Whether ``step`` wants the loss to be the mean over ranks, so that all agree."""
        return self._spikes is not None

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self._scaling is None else loss * self._scaling.scale

    @torch.no_grad()
    def clip(self, parameters: Iterable[Tensor], most: float) -> Tensor:
        """Unscale gradients and bound their global norm; returns it as it was, unscaled.

        ``most`` 0 bounds nothing. What is not finite stays so, and ``step`` will see it.
        """
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        factor: Tensor | None = None
        if self._scaling is not None:
            norm = norm / self._scaling.scale
            factor = 1 / self._scaling.scale
        if most > 0:
            # As torch.nn.utils.clip_grad_norm_ has it; multiplying by 1 spares a synchronisation.
            clipped = torch.clamp(most / (norm + 1e-6), max=1.0)
            factor = clipped if factor is None else clipped * factor
        if factor is not None:
            torch._foreach_mul_(gradients, factor)
        return norm

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Take the step unless it would do harm; returns 1.0 where it was not taken, else 0.0."""
        overflow = ~torch.isfinite(grad_norm)
        refused = overflow
        if self._spikes is not None:
            refused = refused | self._spikes.judge(loss, grad_norm)
        refused = refused.float()
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            # What GradScaler hands to fused optimizers: they leave weights and state as they are.
            optimizer.found_inf = refused  # type: ignore[attr-defined]
            optimizer.step()
            del optimizer.found_inf  # type: ignore[attr-defined]
        elif not refused.item():
            optimizer.step()
        if self._scaling is not None:
            self._scaling.update(overflow)
        self.skipped += refused.long()
        return refused

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint has to hold so that a resumed run decides alike."""
        state = {"skipped": self.skipped}
        for part in (self._scaling, self._spikes):
            if part is not None:
                state.update(part.state())
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up saved state; what was saved of a part that is now off is passed over."""
        for name, own in self.state().items():
            if name in state:
                own.copy_(state[name])


class LossScale:
    """The rule of ``torch.amp.GradScaler``, kept on the device."""

    def __init__(self, config: LossScaleConfig, device: torch.device) -> None:
        self.scale = torch.tensor(config.initial, dtype=torch.float32, device=device)
        self._calm = torch.zeros((), dtype=torch.int64, device=device)
        self._interval = config.growth_interval

    def update(self, overflow: Tensor) -> None:
        self._calm.add_(1)
        grows = self._calm >= self._interval
        doubled = self.scale * 2
        # Growing to infinity would never be undone.
        grown = torch.where(grows & torch.isfinite(doubled), doubled, self.scale)
        self.scale.copy_(torch.where(overflow, self.scale * 0.5, grown))
        self._calm.mul_((~(overflow | grows)).long())

    def state(self) -> dict[str, Tensor]:
        return {"loss_scale": self.scale, "loss_scale_calm": self._calm}


class Spikes:
    """A leap is a value far above the mean of the last ones; the window is state."""

    def __init__(self, config: SkipStepConfig, device: torch.device) -> None:
        self._config = config
        self._window = torch.zeros(config.window, 2, dtype=torch.float32, device=device)
        self._seen = torch.zeros((), dtype=torch.int64, device=device)

    def judge(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Whether either leaps; both then count among the last ones, unless they are not finite."""
        values = torch.stack([loss.float(), grad_norm.float()])
        count = torch.clamp(self._seen, max=self._config.window)
        held = torch.arange(self._config.window, device=values.device) < count
        weights = held.float()[:, None] / torch.clamp(count, min=1)
        mean = (self._window * weights).sum(0)
        spread = (((self._window - mean) ** 2 * weights).sum(0)).sqrt()
        leaps = (values > mean + self._config.sigmas * spread).any()
        finite = torch.isfinite(values).all()
        place = (self._seen % self._config.window)[None]
        kept = torch.where(finite, values, self._window.index_select(0, place))
        self._window.index_copy_(0, place, kept)
        self._seen.add_(finite.long())
        # Half a window must stand before it can say what is usual.
        return leaps & (count >= self._config.window // 2)

    def state(self) -> dict[str, Tensor]:
        return {"spike_window": self._window, "spike_seen": self._seen}
