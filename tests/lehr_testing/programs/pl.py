"""A script with a Lightning module, with Lehr's callback."""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lehr_log.lightning import LehrCallback


class Regression(LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr, self.model = lr, nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        loss = (self.model(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--max_steps", type=int, default=6)
    parser.add_argument("--ckpt_path", default=None)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4)
    trainer = Trainer(
        max_steps=args.max_steps,
        accelerator="cpu",
        logger=False,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LehrCallback(), ModelCheckpoint("out", save_last=True, every_n_train_steps=2)],
    )
    trainer.fit(Regression(args.lr), data, ckpt_path=args.ckpt_path)


if __name__ == "__main__":
    main()
