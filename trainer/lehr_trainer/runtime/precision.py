"""The precision of a run: fp32, or 16-bit autocast over fp32 master weights."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from lehr_trainer.configs.train import PrecisionConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.planning.hardware import Arithmetic


@dataclass(frozen=True)
class Precision:
    """The resolved precision; ``operands`` is the type to which matrix products round operands."""

    device: torch.device
    operands: torch.dtype
    tf32: bool

    @classmethod
    def choose(cls, config: PrecisionConfig, device: torch.device) -> Precision:
        """Resolve ``config`` for ``device``; also sets torch's fp32 matmul switch.

        Raises:
            BadConfig: the device cannot compute so.
        """
        compute = config.compute
        if compute == "auto":
            compute = "bf16" if device.type == "cuda" else "fp32"
        if (
            compute == "bf16"
            and device.type == "cuda"
            and not torch.cuda.is_bf16_supported(including_emulation=False)
        ):
            raise BadConfig(
                f"precision.compute is bf16, but {torch.cuda.get_device_name(device)} has no bf16 "
                "arithmetic; set precision.compute to fp32"
            )
        if config.residual == "bf16" and compute != "bf16":
            raise BadConfig(
                f"precision.residual bf16 needs precision.compute bf16; on {device.type}, auto is "
                f"{compute}. Set precision.compute: bf16, or leave precision.residual out"
            )
        torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
        operands = kinds[compute]
        return cls(device, operands, config.tf32)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context of the forward pass. The loss is computed outside of it."""
        if self.operands == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.operands)

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is scaled: fp16's range is too small for gradients as they are."""
        return self.operands == torch.float16

    @property
    def arithmetic(self) -> Arithmetic:
        """The column of the hardware table that the run's MFU is measured against."""
        if self.operands == torch.bfloat16:
            return "bf16"
        if self.operands == torch.float16:
            return "fp16"
        return "tf32" if self.tf32 and self.device.type == "cuda" else "fp32"
