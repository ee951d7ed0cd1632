"""A Lightning script as its users write it, with a logger of Lightning: it knows nothing of Lehr."""

import argparse
import time

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from torch import nn


class Regression(LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Linear(4, 1)

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.model(batch) - batch.sum(1, keepdim=True)).square().mean()

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: torch.Tensor, _index: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


class Pause(Callback):
    """A step takes some time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_train_batch_start(self, *_: object) -> None:
        time.sleep(self.seconds)


def logger(name: str) -> Logger:
    if name == "wandb":
        return WandbLogger(project="regression", save_dir="logs", offline=True)
    return {"csv": CSVLogger, "tensorboard": TensorBoardLogger}[name]("logs")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--max_steps", type=int, default=12)
    parser.add_argument("--logger", default="csv")
    parser.add_argument("--pause_s", type=float, default=0.0)
    parser.add_argument("--ckpt_path", default=None)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # An epoch has two steps: Lightning does not restore the place within an epoch.
    train = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4)
    held_out = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4)
    trainer = Trainer(
        max_steps=args.max_steps,
        accelerator="cpu",
        logger=logger(args.logger),
        log_every_n_steps=1,
        check_val_every_n_epoch=2,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        callbacks=[
            Pause(args.pause_s),
            ModelCheckpoint("out", save_last=True, every_n_train_steps=2),
        ],
    )
    trainer.fit(Regression(args.lr), train, held_out, ckpt_path=args.ckpt_path)


if __name__ == "__main__":
    main()
