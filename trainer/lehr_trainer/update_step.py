"""The update from gradients: unscale, clip, check, step. AdamW and Muon never wait for the device.

Whether to skip a step is decided by a number on the device. Optimizers that can read it there
(fused AdamW, Lehr's Muon) skip without the host. For 8-bit AdamW the host must read it, which costs
one synchronisation a step. bitsandbytes' update costs a second one (optim/adamw.py).

A step is skipped if a gradient is not finite (always: one such update ruins every weight) and, if
the config asks for it, if loss or gradient norm spike.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lehr_trainer.configs.execution import LossScaleConfig, SkipStepConfig
from lehr_trainer.runtime import sharding


class UpdateStep:
    """Makes an update; call ``scaled(loss).backward()``, ``clip``, ``step`` in this order."""

    def __init__(
        self,
        device: torch.device,
        *,
        loss_scale: LossScaleConfig | None = None,
        skip_step: SkipStepConfig | None = None,
    ) -> None:
        self._scaling = LossScale(loss_scale, device) if loss_scale is not None else None
        spikes = skip_step is not None and skip_step.enabled
        self._spikes = Spikes(skip_step, device) if spikes and skip_step is not None else None
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        """Number of skipped updates so far; on the device."""

    @property
    def loss_scale(self) -> Tensor | None:
        return None if self._scaling is None else self._scaling.scale

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self._scaling is None else loss * self._scaling.scale

    @torch.no_grad()
    def clip(self, model: nn.Module, most: float) -> Tensor:
        """Unscale gradients and clip their global norm; returns the unscaled norm before clipping.

        ``most`` 0 does not clip. Values that are not finite stay so, for ``step`` to see.
        """
        gradients = sharding.own_gradients(model)
        norm = sharding.total_norm(model, gradients)
        factor: Tensor | None = None
        if self._scaling is not None:
            norm = norm / self._scaling.scale
            factor = 1 / self._scaling.scale
        if most > 0:
            # The formula of torch.nn.utils.clip_grad_norm_; multiplying by 1 avoids a
            # synchronisation.
            clipped = torch.clamp(most / (norm + 1e-6), max=1.0)
            factor = clipped if factor is None else clipped * factor
        if factor is not None:
            torch._foreach_mul_(gradients, factor)
        return norm

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Take the step unless it would do harm; returns 1.0 if it was skipped, else 0.0."""
        overflow = ~torch.isfinite(grad_norm)
        skip = overflow
        if self._spikes is not None:
            skip = skip | self._spikes.judge(loss, grad_norm)
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            # As GradScaler does for fused optimizers, which then leave weights and state as they
            # are.
            optimizer.found_inf = skip.float()  # type: ignore[attr-defined]
            optimizer.step()
            del optimizer.found_inf  # type: ignore[attr-defined]
        elif not skip.item():
            optimizer.step()
        if self._scaling is not None:
            self._scaling.update(overflow)
        self.skipped += skip.long()
        return skip.float()

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold so that a resumed run skips the same steps."""
        state = {"skipped": self.skipped}
        for part in (self._scaling, self._spikes):
            if part is not None:
                state.update(part.state())
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load saved state; state of a part that is now switched off is ignored."""
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
        # A scale of infinity would never come down again.
        grown = torch.where(grows & torch.isfinite(doubled), doubled, self.scale)
        self.scale.copy_(torch.where(overflow, self.scale * 0.5, grown))
        self._calm.mul_((~(overflow | grows)).long())

    def state(self) -> dict[str, Tensor]:
        return {"loss_scale": self.scale, "loss_scale_calm": self._calm}


class Spikes:
    """Detector of spikes: values far above the mean of a window of past values."""

    def __init__(self, config: SkipStepConfig, device: torch.device) -> None:
        self._config = config
        self._window = torch.zeros(config.window, 2, dtype=torch.float32, device=device)
        self._seen = torch.zeros((), dtype=torch.int64, device=device)

    def judge(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Return whether either value is a spike; finite values then enter the window."""
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
        # With less than half a window there is no usual value to compare with.
        return leaps & (count >= self._config.window // 2)

    def state(self) -> dict[str, Tensor]:
        return {"spike_window": self._window, "spike_seen": self._seen}
