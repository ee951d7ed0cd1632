"""A script with the calls of nanoGPT's train.py, in its order, for a model of one table.

It joins a process group under NCCL as soon as RANK is set, whatever the device. Arguments that it
does not know, or of another type, are errors. It maps data/<dataset>/train.bin and val.bin, which
git ignores, below the current folder. It logs to W&B at evaluations only, with the step as `iter`
and mfu in percent (-100 at first). It saves ckpt.pt over and over, but not at iteration 0.

Of its own: pause_s, and batches that depend on the iteration alone, so that a resumed attempt can
be compared bitwise.
"""

import os
import pickle
import sys
import time
from ast import literal_eval

import numpy as np
import torch
from torch.distributed import init_process_group
from torch.nn import functional as F

out_dir = "out"
eval_interval = 4
eval_iters = 2
always_save_checkpoint = True
init_from = "scratch"
wandb_log = False
wandb_project = "owt"
wandb_run_name = "gpt2"
dataset = "chars"
batch_size = 8
block_size = 16
learning_rate = 1e-2
max_iters = 12
backend = "nccl"
device = "cuda"
compile = True  # noqa: A001 - its name
pause_s = 0.0
config_keys = [k for k, v in globals().items() if isinstance(v, int | float | bool | str)]
for arg in sys.argv[1:]:
    assert arg.startswith("--")
    key, val = arg.split("=")
    key = key[2:]
    if key not in globals():
        raise ValueError(f"Unknown config key: {key}")
    try:
        attempt = literal_eval(val)
    except (SyntaxError, ValueError):
        attempt = val
    assert type(attempt) is type(globals()[key])
    print(f"Overriding: {key} = {attempt}")
    globals()[key] = attempt
config = {k: globals()[k] for k in config_keys if not k.startswith("_")}

ddp = int(os.environ.get("RANK", "-1")) != -1
if ddp:
    init_process_group(backend=backend)
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    torch.cuda.set_device(device)
master_process = not ddp or os.environ["RANK"] == "0"
if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.set_num_threads(1)
data_dir = os.path.join("data", dataset)


def get_batch(split, seed):
    data = np.memmap(os.path.join(data_dir, f"{split}.bin"), dtype=np.uint16, mode="r")
    starts = np.random.default_rng(seed).integers(len(data) - block_size, size=batch_size)
    blocks = torch.stack(
        [torch.from_numpy(data[i : i + block_size + 1].astype(int)) for i in starts]
    )
    return blocks[:, :-1].to(device), blocks[:, 1:].to(device)


iter_num, best_val_loss = 0, 1e9
with open(os.path.join(data_dir, "meta.pkl"), "rb") as f:
    vocab_size = pickle.load(f)["vocab_size"]
torch.manual_seed(1337)
model = torch.nn.Embedding(vocab_size, vocab_size).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
if init_from == "resume":
    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]
if compile:
    model = torch.compile(model)


def loss_of(split, seed):
    X, Y = get_batch(split, seed)
    return F.cross_entropy(model(X).view(-1, vocab_size), Y.reshape(-1))


@torch.no_grad()
def estimate_loss():
    each = {s: [loss_of(s, -k % 2**32) for k in range(eval_iters)] for s in ("train", "val")}
    return {split: torch.stack(losses).mean() for split, losses in each.items()}


if wandb_log and master_process:
    import wandb

    wandb.init(project=wandb_project, name=wandb_run_name, config=config)

t0, local_iter_num, running_mfu = time.time(), 0, -1.0
while True:
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if wandb_log:
            wandb.log({
                "iter": iter_num,
                "train/loss": losses["train"],
                "val/loss": losses["val"],
                "lr": learning_rate,
                "mfu": running_mfu * 100,
            })  # fmt: skip
        if losses["val"] < best_val_loss or always_save_checkpoint:
            best_val_loss = losses["val"]
            if iter_num > 0:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                    "best_val_loss": best_val_loss,
                    "config": config,
                }
                print(f"saving checkpoint to {out_dir}")
                torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    time.sleep(pause_s)
    loss = loss_of("train", iter_num)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    dt, t0 = t1 - t0, t1
    if local_iter_num >= 5:
        running_mfu = 0.9 * max(running_mfu, 0.0) + 0.1 * 1e-9 / dt
    print(
        f"iter {iter_num}: loss {loss.item():.4f}, time {dt * 1000:.2f}ms, mfu {running_mfu * 100:.2f}%"
    )
    iter_num += 1
    local_iter_num += 1
    if iter_num > max_iters:
        break
