"""A training script in the shape of nanoGPT's: argparse, wandb, a checkpoint file, resume.

It knows nothing of Lehr.
"""

import argparse
import math
import os
import time

import torch
import wandb
from torch import nn


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--max_iters", type=int, default=20)
    parser.add_argument("--eval_interval", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out_dir", default="out")
    parser.add_argument("--init_from", default="scratch", choices=["scratch", "resume"])
    parser.add_argument("--pause_s", type=float, default=0.0)
    return parser.parse_args()


class Bigram(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, 16)
        self.head = nn.Linear(16, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens))


def batch(data: torch.Tensor, step: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed * 100_003 + step)
    at = torch.randint(len(data) - 9, (16,), generator=generator)
    block = torch.stack([data[i : i + 9] for i in at])
    return block[:, :-1], block[:, 1:]


def main() -> None:
    args = parse()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "input.txt"), "rb") as file:
        data = torch.tensor(list(file.read()))
    model = Bigram(256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    start = 0
    path = os.path.join(args.out_dir, "ckpt.pt")
    if args.init_from == "resume":
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["iter"]
        print(f"resuming from {path} at {start}")
    os.makedirs(args.out_dir, exist_ok=True)
    wandb.init(project="nano", config=vars(args))
    for step in range(start + 1, args.max_iters + 1):
        inputs, targets = batch(data, step, args.seed)
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wandb.log({"iter": step, "train/loss": loss.item(), "lr": args.lr})
        if step % args.eval_interval == 0 or step == args.max_iters:
            with torch.no_grad():
                inputs, targets = batch(data, 10**6, 0)
                logits = model(inputs)
                val = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            wandb.log({"iter": step, "val/loss": val.item()})
            print(f"step {step}: val loss {val.item():.4f}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "iter": step}, path)
        if not math.isfinite(loss.item()):
            raise SystemExit("loss is not finite")
        time.sleep(args.pause_s)
    wandb.finish()


if __name__ == "__main__":
    main()
